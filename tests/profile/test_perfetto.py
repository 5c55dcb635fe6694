"""Trace files, as far as viewers rely on them."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from partita.engine.profile import Profile
from tests.profile.conftest import STEPS

Event = dict[str, Any]
NEEDED = {
    "M": {"name", "pid", "tid", "args"},
    "X": {"name", "cat", "pid", "tid", "ts", "dur", "args"},
    "s": {"name", "cat", "pid", "tid", "ts", "id"},
    "f": {"name", "cat", "pid", "tid", "ts", "id", "bp"},
    "b": {"name", "cat", "pid", "tid", "ts", "id"},
    "e": {"name", "cat", "pid", "tid", "ts", "id"},
}
ROUNDING_US = 0.002


@pytest.fixture(scope="module")
def events(profile: Profile, tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    path = profile.write_trace(tmp_path_factory.mktemp("trace") / "trace.json")
    trace = json.loads(Path(path).read_text())
    assert trace.keys() == {"traceEvents", "displayTimeUnit"}
    found: list[Event] = trace["traceEvents"]
    return found


def test_every_event_has_what_its_kind_needs(events: list[Event]) -> None:
    for event in events:
        assert event.keys() == NEEDED[event["ph"]] | {"ph"}
        if event["ph"] != "M":
            assert event["ts"] >= -ROUNDING_US
            assert event.get("dur", 0.0) >= 0.0


def test_every_machine_is_a_process_and_every_thread_has_a_name(events: list[Event]) -> None:
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert sorted(names.values()) == [
        "1 machine, measured: local0",
        *(f"2 machines, measured: local{m}" for m in range(2)),
        *(f"4 machines, simulated: local{m}" for m in range(4)),
    ]
    threads = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert {(e["pid"], e["tid"]) for e in events if e["ph"] == "X"} <= threads


def test_a_thread_does_one_thing_at_a_time(events: list[Event]) -> None:
    lanes: dict[tuple[int, int], list[Event]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            lanes[event["pid"], event["tid"]].append(event)
    for lane in lanes.values():
        lane.sort(key=lambda e: (e["ts"], e["dur"]))
        for before, after in pairwise(lane):
            assert before["ts"] + before["dur"] <= after["ts"] + ROUNDING_US


def test_every_message_is_an_arrow_from_its_send_to_its_receive(
    events: list[Event], profile: Profile
) -> None:
    """The arrow begins when the message was handed over, and does not end before that."""
    ends: dict[str, dict[str, Event]] = defaultdict(dict)
    for event in events:
        if event["ph"] in "sfbe":
            assert event["ph"] not in ends[event["id"]]
            ends[event["id"]][event["ph"]] = event
    steps = [1 if point.measured is None else STEPS for point in profile.points]
    counts = [len(point.plan.messages) for point in profile.points]
    assert len(ends) == sum(a * b for a, b in zip(steps, counts, strict=True))
    for arrow in ends.values():
        send, receive = around(events, arrow["s"]), around(events, arrow["f"])
        assert send["cat"] == "send" and receive["cat"] == "receive"
        assert send["pid"] != receive["pid"]
        assert send["args"]["step"] == receive["args"]["step"]
        assert arrow["s"]["name"] in send["args"]["instruction"]
        assert arrow["b"]["ts"] == pytest.approx(send["ts"] + send["dur"], abs=ROUNDING_US)
        assert arrow["b"]["ts"] <= arrow["e"]["ts"]


def around(events: list[Event], arrow: Event) -> Event:
    """The bar that begins where an arrow does."""
    (found,) = (
        e
        for e in events
        if e["ph"] == "X" and (e["pid"], e["tid"]) == (arrow["pid"], arrow["tid"]) and e["ts"] == arrow["ts"]
    )
    return found


def test_steps_follow_one_another(events: list[Event]) -> None:
    steps: dict[tuple[int, int], list[float]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            steps[event["pid"], event["args"]["step"]].append(event["ts"])
    for pid in {pid for pid, _ in steps}:
        own = [times for (p, _), times in sorted(steps.items()) if p == pid]
        assert len(own) in (1, STEPS)
        assert all(max(before) < min(after) for before, after in pairwise(own))
