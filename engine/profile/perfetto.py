"""Timelines in the trace event format of Chrome, which https://ui.perfetto.dev shows.

Each machine is a process; in it a thread for communication, one for each kernel thread, and one that shows
when the machine waits. Each message is an arrow from its SEND to its RECV, and a bar of its own in transit.

Source: "Trace Event Format", a document of the Chromium project.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from partita.partitioner.predict.timeline import COMMUNICATION, Bar, Flight, Timeline, Wait

Event = dict[str, Any]

WAITS: Final = 1000
"""Number of the thread that shows waiting, behind all kernel threads."""


@dataclass(frozen=True)
class Recording:
    """Steps of one plan.

    Args:
        name: name of the plan, in front of the names of its machines.
        machines: their names.
        steps: each with the second at which it began, on one clock.
    """

    name: str
    machines: tuple[str, ...]
    steps: Sequence[tuple[float, Timeline]]


def to_json(recordings: Sequence[Recording]) -> bytes:
    """Returns the trace file of some recordings, each with its own processes."""
    events: list[Event] = []
    first = 1  # process 0 is the kernel's in some viewers
    for recording in recordings:
        events += _events(recording, first, len(events))
        first += len(recording.machines)
    return msgspec.json.encode({"traceEvents": events, "displayTimeUnit": "ms"})


def _events(recording: Recording, first: int, number: int) -> Iterator[Event]:
    yield from _names(recording, first)
    names = recording.machines
    for step, (began_s, timeline) in enumerate(recording.steps):
        for bar in timeline.bars:
            label, text = timeline.label(bar, names), str(timeline.instruction(bar))
            yield {
                **_slice(bar, first, began_s, tid=bar.thread, category=timeline.kind(bar), name=label),
                "args": {"instruction": text, "step": step},
            }
        for wait in timeline.waits:
            text = wait.label(names)
            yield {
                **_slice(wait, first, began_s, tid=WAITS, category="wait", name=text),
                "args": {"instruction": text, "step": step},
            }
        for flight in timeline.flights:
            yield from _flight(timeline, flight, first, began_s, f"{number}.{step}")
            number += 1


def _names(recording: Recording, first: int) -> Iterator[Event]:
    threads = {(bar.machine, bar.thread) for _, timeline in recording.steps for bar in timeline.bars}
    for machine, name in enumerate(recording.machines):
        doubt = max(timeline.doubt_s[machine] for _, timeline in recording.steps)
        pid = first + machine
        yield _named("process_name", pid, 0, name=f"{recording.name}: {name}")
        yield _named("process_sort_index", pid, 0, sort_index=pid)
        yield _named("process_labels", pid, 0, labels=f"clock ± {doubt * 1e6:.0f} us")
        for thread in (*sorted(t for m, t in threads if m == machine), WAITS):
            title = {COMMUNICATION: "communication", WAITS: "waits"}.get(thread, f"kernel {thread}")
            yield _named("thread_name", pid, thread, name=title)
            yield _named("thread_sort_index", pid, thread, sort_index=thread)


def _named(what: str, pid: int, tid: int, **arguments: object) -> Event:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": arguments}


def _slice(span: Bar | Wait, first: int, began_s: float, *, tid: int, category: str, name: str) -> Event:
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "pid": first + span.machine,
        "tid": tid,
        "ts": _us(began_s + span.start_s),
        "dur": _us(span.stop_s - span.start_s),
    }


def _flight(timeline: Timeline, flight: Flight, first: int, began_s: float, identity: str) -> Iterator[Event]:
    """An arrow between the bars of a message's SEND and RECV, and a bar for its transit."""
    send = timeline.parts[flight.source][flight.send]
    receive = timeline.parts[flight.destination][flight.receive]
    destination, sent = first + flight.destination, _us(began_s + flight.start_s)
    common = {"cat": "message", "name": str(timeline.operand(flight)), "id": identity}
    begun, taken = _us(began_s + send.start_s), _us(began_s + receive.start_s)
    yield {**common, "ph": "s", "pid": first + flight.source, "tid": send.thread, "ts": begun}
    yield {**common, "ph": "f", "bp": "e", "pid": destination, "tid": receive.thread, "ts": taken}
    way = {**common, "cat": "way", "pid": destination, "tid": COMMUNICATION}
    yield {**way, "ph": "b", "ts": sent}
    yield {**way, "ph": "e", "ts": max(_us(began_s + flight.stop_s), sent)}


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 3)
