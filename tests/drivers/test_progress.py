"""What a run shows: sums of reports, and lines where there is no terminal."""

from __future__ import annotations

import io
import itertools

import pytest

from partita.engine.drivers.display import Display
from partita.engine.drivers.progress import Meter
from partita.engine.protocol.orders import Progress


def meter() -> Meter:
    return Meter(steps_per_replica=100, done=(10, 0))


def test_a_replica_is_as_far_as_its_slowest_part() -> None:
    found = meter()
    assert (found.total_steps, found.steps, found.moment()) == (200, 10, None)
    found.add(Progress("part 0.0", 30, 0, 0.0, 0, 6, 3))
    assert found.steps == 30
    assert found.moment() is None, "there is no mean over no example"
    found.add(Progress("part 0.1", 20, 80, 40.0, 60, 0, 1))
    found.add(Progress("part 1.1", 5, 40, 80.0, 0, 0, 0))
    moment = found.moment()
    assert moment is not None
    assert (moment.step, moment.examples, moment.loss, moment.accuracy) == (25, 120, 1.0, 0.5)
    assert moment.staleness == 1.5
    assert found.moment() is None
    assert found.history == [moment]


def test_the_pushes_of_a_process_that_was_replaced_still_count() -> None:
    found = meter()
    for step, pushes, staleness in ((30, 6, 12), (31, 2, 0), (32, 4, 0)):
        found.add(Progress("part 0.0", step, 8, 8.0, 4, staleness, pushes))
    found.add(Progress("part 1.0", 9, 8, 8.0, 4, 8, 10))
    moment = found.moment()
    assert moment is not None and moment.staleness == (12 + 8) / (6 + 4 + 10)


def test_lines_come_at_most_every_two_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(0.0, 0.5)
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    stream = io.StringIO()
    with Display(meter(), "lines", stream=stream) as display:
        display.say("[bold] is printed as it is")
        for step in range(11, 31):
            display.update(Progress("part 0.0", step, 8, 8.0, 4, 0, 0))
    lines = stream.getvalue().splitlines()
    assert lines[0] == "[bold] is printed as it is"
    assert "nan" not in stream.getvalue()
    assert lines[-1].startswith("step 30/200  loss 1.0000  accuracy 0.500  ")
    assert 3 <= len(lines) <= 10


def test_nothing_is_nothing_and_live_is_one_line() -> None:
    for show, words in (("nothing", ""), ("live", "training")):
        stream = io.StringIO()
        with Display(meter(), show, stream=stream) as display:  # type: ignore[arg-type]
            display.update(Progress("part 0.0", 50, 8, 8.0, 4, 0, 0))
            display.say("" if show == "nothing" else "a line that stays")
        assert words in stream.getvalue()
        assert "nan" not in stream.getvalue()


def test_accuracy_is_the_mean_over_losses_with_classes_and_is_left_out_without_any() -> None:
    report = Progress("part 0.0", 1, 10, 5.0, 15, 0, 0)
    both, none = Meter(100, (0,), classifiers=2), Meter(100, (0,), classifiers=0)
    for found in (both, none):
        found.add(report)
    assert (moment := both.moment()) is not None
    assert moment.accuracy == 0.75
    assert "accuracy" not in str(none.moment())
