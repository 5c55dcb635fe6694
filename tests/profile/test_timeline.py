"""Timelines: where a step goes, against counting by hand."""

from __future__ import annotations

from dataclasses import astuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.engine.profile import Profile, Timeline
from partita.engine.profile.timeline import Bar, Flight, Missing
from partita.engine.view.steps import measured_gantt
from partita.partitioner import Times
from partita.partitioner.ir.program import COMPUTES

STEP = 20


def bar(machine: int, thread: int, start: float, stop: float) -> Bar:
    kind = "forward" if thread else "send"
    return Bar(machine, thread, start, stop, kind, f"{kind} h", f"{kind} h[0:1]")


def test_a_step_is_divided_as_by_hand() -> None:
    """Computes 0-4 and 6-8, sends 3-5, misses a message 2-7, and the other machine goes on until 10."""
    bars = (bar(0, 1, 0, 4), bar(0, 0, 3, 5), bar(0, 1, 6, 8), bar(1, 1, 0, 10))
    missing = (Missing(2, 7, "h"), Missing(1, 3, "x"))
    timeline = Timeline(("a", "b"), 10, bars, (), (missing, ()), (0.0, 0.0))
    assert timeline.waits(0) == (Missing(5, 6, "h"),)
    assert timeline.times == (Times(6, 1, 1, 2), Times(10, 0, 0, 0))


SPANS = st.lists(st.tuples(st.integers(0, STEP), st.integers(0, STEP)).map(sorted).map(tuple), max_size=6)


@given(computing=SPANS, sending=SPANS, missing=SPANS)
def test_a_step_is_divided_as_by_counting(
    computing: list[tuple[int, int]], sending: list[tuple[int, int]], missing: list[tuple[int, int]]
) -> None:
    """Each second of the step is classified by itself."""
    bars = (*(bar(0, 1, *span) for span in computing), *(bar(0, 0, *span) for span in sending))
    ordered = tuple(sorted(bars, key=lambda bar: bar.start_s))
    missed = tuple(Missing(*span, f"from {span[0]}") for span in missing)
    timeline = Timeline(("a",), STEP, ordered, (), (missed,), (0.0,))
    times = timeline.times[0]
    assert all(wait.stop_s > wait.start_s for wait in timeline.waits(0))

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


def test_a_prediction_keeps_what_the_virtual_clock_found(profile: Profile) -> None:
    for point in profile.points:
        simulated_step, timeline = point.plan.simulated_step, Timeline.of_simulated_step(point.plan)
        assert timeline.step_s == simulated_step.step_s
        assert len(timeline.flights) == len(point.plan.messages)
        for found, expected in zip(timeline.times, simulated_step.times, strict=True):
            assert astuple(found) == pytest.approx(astuple(expected), abs=1e-12)


def test_a_measured_step_shows_every_instruction_and_message(profile: Profile) -> None:
    for point in profile.points:
        if point.measured is None:
            continue
        for timeline in point.measured.timelines:
            texts = sorted((bar.machine, bar.text) for bar in timeline.bars)
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
    bars = (bar(0, 1, 0, 4), bar(0, 2, 1, 5), bar(0, 0, 5, 6), bar(1, 1, 7, 9))
    flight = Flight(0, 1, 0, 0, 5, 6, 7, 7, "h[0:1]")
    timeline = Timeline(("a", "b"), 10, bars, (flight,), ((), (Missing(0, 7, "h"),)), (0.0, 0.0))
    drawn = measured_gantt(timeline, "title", "subtitle", until_s=12)
    assert [(lane.name, lane.thin) for lane in drawn.lanes] == [
        ("a", False),
        ("", False),
        ("", True),
        ("b", False),
        ("", True),
    ]
    assert [(b.lane, b.start_s, b.stop_s, b.kind) for b in drawn.bars] == [
        (0, 0, 4, "forward"),
        (1, 1, 5, "forward"),
        (2, 5, 6, "send"),
        (3, 7, 9, "forward"),
        (3, 0, 7, "wait"),
    ]
    assert [(f.source, f.destination, f.start_s, f.stop_s) for f in drawn.arrows] == [(2, 4, 6, 7)]
    assert drawn.stop_s == 12
