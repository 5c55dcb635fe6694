"""The display of a run: sums of reports, and lines where there is no terminal."""

from __future__ import annotations

import io
import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.engine import LBFGS, AllReduce, Downpour, Sandblaster, train
from partita.engine.drivers import Driver
from partita.engine.protocol.coordinator_effects import Progress
from partita.engine.protocol.names import COORDINATOR
from partita.engine.run import Record
from partita.engine.run.display import Display
from partita.engine.run.metrics import Metrics
from partita.engine.runtime.reported_sums import ReportedSums
from partita.layers import HalfSquaredError, Network, SoftmaxCrossEntropy
from partita.partitioner import Cluster, partition
from tests.drivers.conftest import WatchedThreads
from tests.faults import toy


def report(
    part: str, step: int, examples: int, loss: float, correct: int, staleness: float, pushes: int
) -> Progress:
    """The report of a part, as Downpour's coordinator passes it on."""
    sums, counters = {"loss": loss, "correct": correct}, {"staleness": staleness, "pushes": pushes}
    return Progress(part, step, examples, sums, counters)


def iterated(
    iteration: int,
    loss: float,
    gradient_norm: float,
    step: float,
    evaluations: int,
    note: str = "",
    *,
    others: tuple[int, int, int],
) -> Progress:
    """The report of a batch method; `others`: redone, busy, replicas."""
    values = {"loss": loss, "gradient_norm": gradient_norm, "step": step, "evaluations": evaluations}
    values |= dict(zip(("redone", "busy", "replicas"), others, strict=True))
    return Progress(COORDINATOR, iteration, values=values, note=note)


def test_a_replica_is_as_far_as_its_slowest_part() -> None:
    found = Metrics(200, done=(10, 0), machines=2)
    assert (found.total, found.steps, found.latest()) == (200, 10, None)
    found.add(report("part 0.0", 20, 0, 0.0, 0, 4, 2))
    found.add(report("part 0.0", 30, 0, 0.0, 0, 6, 3))
    assert found.steps == 30
    assert found.latest() is None, "there is no mean over no example"
    found.add(report("part 0.1", 20, 80, 40.0, 60, 0, 1))
    found.add(report("part 1.1", 5, 40, 80.0, 0, 0, 0))
    latest = found.latest()
    assert latest is not None
    assert (latest.step, latest.examples, latest.loss, latest.accuracy) == (25, 80, 0.5, 0.75)
    assert latest.staleness == 1.5
    assert found.latest() is None
    assert found.history == [latest]


@given(
    st.lists(st.lists(st.tuples(*[st.integers(0, 4)] * 2), min_size=1, max_size=12), min_size=1, max_size=3),
    st.randoms(use_true_random=False),
)
def test_steps_count_when_all_parts_have_reported_them(
    spaces: list[list[tuple[int, int]]], order: random.Random
) -> None:
    # In every step one part finds four examples right, and the other four wrong; each reports at steps of its
    # own choice among multiples of powers of two, and at the last one.
    found = Metrics(64 * len(spaces), done=(0,) * len(spaces), machines=2)
    reports = [
        list(_reports(f"part {replica}.{part}", [pair[part] for pair in space], right=part))
        for replica, space in enumerate(spaces)
        for part in (0, 1)
    ]
    examples = 0
    while any(reports):
        found.add(order.choice([some for some in reports if some]).pop(0))
        if (latest := found.latest()) is not None:
            assert (latest.accuracy, latest.loss) == (0.5, 2.0)
            examples = latest.examples
    assert examples == 64 * 8 * len(spaces)


def _reports(name: str, spaces: list[int], *, right: int) -> Iterator[Progress]:
    """Reports of a part whose examples all have the loss 2 and are all right (1) or all wrong (0)."""
    before = 0
    for exponent in (*spaces, 6):
        step = min((before >> exponent) + 1 << exponent, 64)
        if step > before:
            n = 4 * (step - before)
            yield report(name, step, n, 2.0 * n, right * n, 0, 0)
        before = step


def test_the_pushes_of_a_process_that_was_replaced_still_count() -> None:
    found = Metrics(200, done=(10, 0))
    for step, pushes, staleness in ((30, 6, 12), (31, 2, 0), (32, 4, 0)):
        found.add(report("part 0.0", step, 8, 8.0, 4, staleness, pushes))
    found.add(report("part 1.0", 9, 8, 8.0, 4, 8, 10))
    latest = found.latest()
    assert latest is not None and latest.staleness == (12 + 8) / (6 + 4 + 10)


def test_records_are_one_stream_of_all_replicas_and_of_a_method() -> None:
    """A record comes when every part has reported; a method's has its values."""
    records: list[Record] = []
    steps = Metrics(40, done=(0, 0), machines=2, on_record=records.append)
    for part, step, examples in (
        ("part 1.0", 2, 0),
        ("part 0.0", 1, 0),
        ("part 1.1", 2, 16),
        ("part 0.1", 1, 8),
    ):
        steps.add(report(part, step, examples, examples / 2, examples // 4, 3, 2))
    assert [(one.replica, one.step, one.examples) for one in records] == [(1, 2, 16), (0, 1, 8)]
    assert all(one.metrics == {"loss": 0.5, "accuracy": 0.25, "staleness": 1.5} for one in records)
    method = Metrics(None, unit="iteration", on_record=records.append)
    method.add(iterated(3, 0.5, 2e-3, 0.25, 6, "steep", others=(7, 2, 4)))
    last = records[-1]
    assert (last.replica, last.step, last.examples, last.note) == (None, 3, 0, "steep")
    assert last.metrics["gradient_norm"] == 2e-3 and len(records) == 3


@pytest.mark.parametrize(
    "driver", [Downpour(replicas=2), AllReduce(replicas=2), Sandblaster(LBFGS(max_iterations=3), replicas=2)]
)
def test_a_run_under_any_driver_has_the_records_of_all_its_examples(
    on_threads: list[WatchedThreads], driver: Driver
) -> None:
    records: list[Record] = []
    plan = partition(toy.network(), Cluster.local(2), batch=8)
    epochs = None if driver.ends else 2
    data, on_record = toy.data(100), records.append
    run = train(plan, data, driver=driver, epochs=epochs, show="nothing", on_record=on_record)
    assert [one.seconds for one in records] == sorted(one.seconds for one in records)
    assert all(math.isfinite(one.metrics["loss"]) for one in records)
    if driver.ends:
        assert [(one.replica, one.step) for one in records] == [(None, 1), (None, 2), (None, 3)]
        losses = [one.loss for one in run.history]
        assert [one.metrics["loss"] for one in records] == losses
    else:
        assert sum(one.examples for one in records) == 200
        last = {one.replica: one.step for one in records}
        assert last == dict(enumerate(run.steps))


def test_lines_come_at_most_every_two_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(0.0, 0.5)
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    stream = io.StringIO()
    with Display("lines", stream=stream) as display:
        display.follow(Metrics(200, done=(10, 0)))
        display.print_line("[bold] is printed as it is")
        for step in range(11, 31):
            display.update(report("part 0.0", step, 8, 8.0, 4, 0, 0))
    lines = stream.getvalue().splitlines()
    assert lines[0] == "[bold] is printed as it is"
    assert "nan" not in stream.getvalue()
    assert lines[-1].startswith("step 30/200  loss 1.0000  accuracy 0.500  ")
    assert 3 <= len(lines) <= 10


def test_nothing_is_nothing_and_live_is_one_line() -> None:
    for show, words in (("nothing", ""), ("live", "training")):
        stream = io.StringIO()
        with Display(show, stream=stream) as display:  # type: ignore[arg-type]
            display.follow(Metrics(200, done=(10, 0)))
            display.update(report("part 0.0", 50, 8, 8.0, 4, 0, 0))
            display.print_line("" if show == "nothing" else "a line that stays")
        assert words in stream.getvalue()
        assert "nan" not in stream.getvalue()


FIGURES = ("loss 0.5", "gradient 2.0e-03", "step 0.25", "evaluations 6", "redone 7", "busy 2/4")


@pytest.mark.parametrize(("width", "shown"), [(40, 1), (60, 2), (80, 4), (120, 6)])
def test_a_live_line_keeps_its_percentage_and_breaks_no_figure(
    monkeypatch: pytest.MonkeyPatch, width: int, shown: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    stream = io.StringIO()
    with Display("live", stream=stream) as display:
        display.follow(Metrics(2000, unit="iteration"))
        display.update(iterated(900, 0.5, 2e-3, 0.25, 6, "", others=(7, 2, 4)))
    line = stream.getvalue().splitlines()[-1]
    assert len(line) <= width and "…" not in line
    assert " 45% " in line and line.rstrip().endswith(":--")
    assert [figure in line for figure in FIGURES] == [n < shown for n in range(len(FIGURES))]
    assert ("━" in line) == (width == 120)


def labelled(count: int) -> Network:
    """A network with so many losses with labels, or one without."""
    net = Network("labelled")
    scores = net.input("scores", shape=3)
    kind = SoftmaxCrossEntropy if count else HalfSquaredError
    net.loss = [kind(name=f"loss_{n}")(scores, net.target(f"y{n}")) for n in range(count or 1)]
    return net


def test_accuracy_is_the_mean_over_losses_with_classes_and_is_left_out_without_any() -> None:
    one = replace(report("part 0.0", 1, 10, 5.0, 15, 0, 0), further=(10.0, 1.0, 4.0))
    both, none = (Metrics(100, done=(0,), reported=ReportedSums.of(labelled(n).graph())) for n in (2, 0))
    for found in (both, none):
        found.add(one)
    assert (latest := both.latest()) is not None
    assert latest.accuracy == 0.75
    assert latest.metrics == {"loss_0": 0.1, "loss_1": 0.4}
    assert "accuracy" not in str(none.latest())


@pytest.mark.parametrize(("most", "done"), [(40, "2/40"), (None, "2")])
def test_a_batch_method_is_shown_by_iteration(most: int | None, done: str) -> None:
    """After other metrics, in the same display; iterations that were not shown are in the history."""
    stream, found = io.StringIO(), Metrics(most, unit="iteration")
    with Display("lines", stream=stream) as display:
        display.follow(Metrics(200, done=(10, 0)))
        display.update(report("part 0.0", 50, 8, 8.0, 4, 0, 0))
        display.follow(found)
        for n in (1, 2):
            display.update(iterated(n, 0.5, 2e-3, 0.25, 3 * n, "steep", others=(7, 2, 4)))
    first, last = stream.getvalue().splitlines()
    assert first.startswith("step 50/200  loss 1.0000")
    line = "loss 0.5  gradient 2.0e-03  step 0.25  evaluations 6  redone 7  busy 2/4"
    assert last == f"iteration {done}  {line}"
    assert [(one.iteration, one.note) for one in found.history] == [(1, "steep"), (2, "steep")]
    assert found.latest() is None


def test_a_batch_method_is_shown_in_a_live_line() -> None:
    stream = io.StringIO()
    with Display("live", stream=stream) as display:
        display.follow(Metrics(200, done=(10, 0)))
        display.follow(Metrics(None, unit="iteration"))
        display.update(iterated(1, 0.5, 2e-3, 0.25, 3, others=(0, 1, 1)))
    assert "loss 0.5  gradient 2.0e-03" in stream.getvalue()
