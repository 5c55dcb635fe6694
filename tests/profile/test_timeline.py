"""Timelines: where a step goes, against counting by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.engine.profile import Profile
from partita.engine.profile.timeline import Bar, Kind, Timeline, Times
from partita.partitioner.program import COMPUTES

STEP = 20


def bar(machine: int, thread: int, start: float, stop: float) -> Bar:
    return Bar(machine, thread, start, stop, Kind.UP, "UP h", "UP h[0:1]")


def test_a_step_is_divided_as_by_hand() -> None:
    """Computes 0-4 and 6-8, sends 3-5, misses a message 2-7, and the other machine goes on until 10."""
    bars = (bar(0, 1, 0, 4), bar(0, 0, 3, 5), bar(0, 1, 6, 8), bar(1, 1, 0, 10))
    timeline = Timeline(("a", "b"), 10, bars, (), (((2, 7),), ()), (0.0, 0.0))
    assert timeline.waits(0) == ((5, 6),)
    assert timeline.times == (Times(6, 1, 1, 2), Times(10, 0, 0, 0))


SPANS = st.lists(st.tuples(st.integers(0, STEP), st.integers(0, STEP)).map(sorted).map(tuple), max_size=6)


@given(computing=SPANS, sending=SPANS, missing=SPANS)
def test_a_step_is_divided_as_by_counting(
    computing: list[tuple[int, int]], sending: list[tuple[int, int]], missing: list[tuple[int, int]]
) -> None:
    """Of each second it is asked what the machine did in it."""
    bars = (*(bar(0, 1, *span) for span in computing), *(bar(0, 0, *span) for span in sending))
    ordered = tuple(sorted(bars, key=lambda bar: bar.start_s))
    times = Timeline(("a",), STEP, ordered, (), (tuple(missing),), (0.0,)).times[0]

    def seconds(spans: list[tuple[int, int]]) -> set[int]:
        return {second for start, stop in spans for second in range(start, stop)}

    busy = seconds(computing) | seconds(sending)
    expected = Times(
        len(seconds(computing)),
        len(seconds(sending) - seconds(computing)),
        len(seconds(missing) - busy),
        STEP - len(busy | seconds(missing)),
    )
    assert times == expected and times.step_s == STEP


def test_a_prediction_keeps_what_the_virtual_clock_found(profile: Profile) -> None:
    for point in profile.points:
        playback = point.plan.playback
        assert point.predicted.step_s == playback.step_s
        for times, busy_s in zip(point.predicted.times, playback.busy_s, strict=True):
            assert times.computing_s == pytest.approx(busy_s)
            assert times.step_s == pytest.approx(playback.step_s)


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
                assert timeline.times[m].step_s == pytest.approx(timeline.step_s)
                assert all(0 <= bar.start_s <= bar.stop_s <= timeline.step_s for bar in kernels)
