"""Timelines: where a step goes, against counting by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.engine.profile import Profile
from partita.engine.view.steps import gantt_of
from partita.partitioner.ir.program import COMPUTES, Program, parse_program
from partita.partitioner.predict.timeline import Bar, Flight, Timeline, Times

STEP = 20


def timeline_of(
    bars: Sequence[tuple[int, int, float, float]],
    missing: Sequence[tuple[float, float, str]] = (),
    *,
    step_s: float,
) -> Timeline:
    """A step of two machines: bars as machine, thread, start and stop; the first misses messages."""
    texts: list[list[str]] = [[], []]
    parts: list[list[Bar]] = [[], []]
    flights = []
    for machine, thread, start, stop in bars:
        texts[machine].append("FORWARD h[0:1]" if thread else f"SEND h[0:1] -> {1 - machine}")
        parts[machine].append(Bar(machine, len(parts[machine]), thread, start, stop, 0))
    for wanted, arrived, what in missing:
        flights.append(Flight(1, 0, len(parts[1]), len(parts[0]), 0, arrived))
        texts[0].append(f"RECV {what}[0:1] <- 1")
        texts[1].append(f"SEND {what}[0:1] -> 0")
        parts[0].append(Bar(0, len(parts[0]), 0, arrived, arrived, wanted))
        parts[1].append(Bar(1, len(parts[1]), 0, 0, 0, 0))
    programs = tuple(parse_program(machine, "\n".join(lines)) for machine, lines in enumerate(texts))
    return Timeline(programs, tuple(map(tuple, parts)), tuple(flights), step_s, (0.0, 0.0), (0.0, 0.0))


def test_a_step_is_divided_as_by_hand() -> None:
    """Computes 0-4 and 6-8, sends 3-5, misses a message 2-7, and the other machine goes on until 10."""
    bars = (0, 1, 0, 4), (0, 0, 3, 5), (0, 1, 6, 8), (1, 1, 0, 10)
    timeline = timeline_of(bars, [(2, 7, "h"), (1, 3, "x")], step_s=10)
    assert [(wait.machine, wait.start_s, wait.stop_s, wait.source) for wait in timeline.waits] == [
        (0, 5, 6, 1)
    ]
    assert timeline.waits[0].label(("a", "b")) == "waits for activations of h from b"
    assert timeline.times == (Times(6, 1, 1, 2), Times(10, 0, 0, 0))


SPANS = st.lists(st.tuples(st.integers(0, STEP), st.integers(0, STEP)).map(sorted).map(tuple), max_size=6)


@given(computing=SPANS, sending=SPANS, missing=SPANS)
def test_a_step_is_divided_as_by_counting(
    computing: list[tuple[int, int]], sending: list[tuple[int, int]], missing: list[tuple[int, int]]
) -> None:
    """Each second of the step is classified by itself."""
    bars = (*((0, 1, *span) for span in computing), *((0, 0, *span) for span in sending))
    timeline = timeline_of(bars, [(*span, f"h{n}") for n, span in enumerate(missing)], step_s=STEP)
    times = timeline.times[0]
    assert all(wait.stop_s > wait.start_s for wait in timeline.waits)

    def seconds(spans: list[tuple[int, int]]) -> set[int]:
        return {second for start, stop in spans for second in range(start, stop)}

    busy = seconds(computing) | seconds(sending)
    expected = Times(
        len(seconds(computing)),
        len(seconds(sending) - seconds(computing)),
        len(seconds(missing) - busy),
        STEP - len(busy | seconds(missing)),
    )
    assert times == expected and sum(astuple(times)) == STEP


def test_a_simulated_machine_pauses_for_messages_alone(profile: Profile) -> None:
    """From when it has begun until its last instruction is done."""
    for point in profile.points:
        timeline = point.plan.simulated_step
        assert len(timeline.flights) == len(point.plan.messages)
        for m, (part, times) in enumerate(zip(timeline.parts, timeline.times, strict=True)):
            begun, done = point.plan.costs.step_s(m), max(bar.stop_s for bar in part)
            assert sum(astuple(times)) == pytest.approx(timeline.step_s, abs=1e-12)
            assert times.computing_s == pytest.approx(timeline.busy_s[m], abs=1e-12)
            assert times.idle_s == pytest.approx(timeline.step_s - (done - begun), abs=1e-12)


def test_a_measured_step_shows_every_instruction_and_message(profile: Profile) -> None:
    for point in profile.points:
        if point.measured is None:
            continue
        for timeline in point.measured.timelines:
            texts = sorted((bar.machine, str(timeline.instruction(bar))) for bar in timeline.bars)
            programs = point.plan.programs
            assert texts == sorted((m, str(i)) for m, p in enumerate(programs) for i in p.instructions)
            assert len(timeline.flights) == len(point.plan.messages)
            for m, program in enumerate(programs):
                kernels = [bar for bar in timeline.bars if bar.machine == m and bar.thread > 0]
                assert len(kernels) >= sum(i.op in COMPUTES for i in program.instructions)
                assert sum(astuple(timeline.times[m])) == pytest.approx(timeline.step_s)
                assert all(0 <= bar.start_s <= bar.stop_s <= timeline.step_s for bar in kernels)


def test_it_is_drawn_with_a_lane_for_each_thread() -> None:
    """Two kernel threads of one machine, and one of the other, which misses a message until 7."""
    bars = (0, 1, 0, 4), (0, 2, 1, 5), (1, 1, 7, 9)
    step = timeline_of(bars, step_s=10)
    sent, taken = parse_program(0, "SEND h[0:1] -> 1"), parse_program(1, "RECV h[0:1] <- 0")
    programs = [
        Program(m, (*old.instructions, *new.instructions))
        for m, (old, new) in enumerate(zip(step.programs, (sent, taken), strict=True))
    ]
    parts = (*step.parts[0], Bar(0, 2, 0, 5, 6, 5)), (*step.parts[1], Bar(1, 1, 0, 7, 7, 0))
    step = replace(step, programs=tuple(programs), parts=parts, flights=(Flight(0, 1, 2, 1, 6, 7),))
    drawn = gantt_of(step, ("a", "b"), title="title", subtitle="subtitle")
    assert [(lane.name, lane.thin) for lane in drawn.lanes] == [
        ("a", False),
        ("", False),
        ("", True),
        ("b", False),
        ("", True),
    ]
    assert [(b.lane, b.start_s, b.stop_s, b.kind, b.label) for b in drawn.bars] == [
        (0, 0, 4, "forward", "FORWARD h"),
        (1, 1, 5, "forward", "FORWARD h"),
        (2, 5, 6, "send", "SEND h to b"),
        (3, 7, 9, "forward", "FORWARD h"),
        (4, 7, 7, "receive", "RECV h from a"),
        (3, 0, 7, "wait", "waits for activations of h from a"),
    ]
    (arrow,) = drawn.arrows
    assert (arrow.source, arrow.destination, arrow.start_s, arrow.stop_s) == (2, 4, 6, 7)
    assert arrow.label == "h[0:1] from a to b"
    assert drawn.stop_s == 9 and replace(drawn, until_s=12).stop_s == 12
