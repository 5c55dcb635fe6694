"""Metrics and the parts of a loss: over any cut, in micro-batches, those of the whole data in NumPy."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.engine import MeanAbsoluteError, Metric, Run, Session, TopK, evaluate
from partita.engine.parameters import initialise
from partita.engine.runtime.metric import check_metrics
from partita.engine.runtime.reported_sums import ReportedSums
from partita.layers import Dense, HalfSquaredError, Linear, Loss, Network, SoftmaxCrossEntropy
from partita.partitioner import Cluster, Plan, Whole, partition
from tests.draws import examples
from tests.truth.interleaved import InterleavedReplica, draw_batch

Array: TypeAlias = npt.NDArray[Any]

PADDING = 2


@dataclass(frozen=True)
class Bias(Metric):
    """A metric of a user's own: the mean difference of an example's scores and target."""

    n_sums = 2

    def fits(self, loss: Loss) -> bool:
        """Losses of numbers."""
        return isinstance(loss, HalfSquaredError)

    def update(self, scores: Array, target: Array) -> Sequence[float]:
        """Sums the differences, and counts examples."""
        return float((scores - target).sum()), len(scores)

    def result(self, sums: Sequence[float]) -> float:
        """Divides both."""
        return sums[0] / sums[1]


METRICS = (TopK(2), MeanAbsoluteError(), Bias(name="bias"))


def network(*, positions: bool = False) -> Network:
    """An output with labels, of each position or of an example; and one of numbers."""
    net = Network("several")
    x = net.input("x", shape=(5, 3))
    scores = (Linear if positions else Dense)(4, name="scores")(x)
    who = SoftmaxCrossEntropy(ignore_index=PADDING if positions else None, name="who")
    age = HalfSquaredError(name="age")(
        Dense(3, name="years")(x), net.target("t"), sample_weight=net.target("w")
    )
    net.loss = who(scores, net.target("y")) + 0.25 * age
    return net


def expected(
    states: dict[str, Array], batch: dict[str, Array], count: int, *, positions: bool
) -> tuple[float, dict[str, float]]:
    """Accuracy and all figures of the first examples."""
    scores = np.moveaxis(states["scores"], -1, 0)[:count].reshape(-1, 4)
    labels = batch["y"][:count].reshape(-1)
    top = (scores >= scores[np.arange(len(scores)), labels][:, None]).sum(1)
    logs = np.log(np.exp(scores).sum(1)) - scores[np.arange(len(scores)), labels]
    counts = labels != PADDING if positions else np.ones(len(labels), bool)
    years, wanted = np.moveaxis(states["years"], -1, 0)[:count], batch["t"][:count]
    squares = (batch["w"][:count, 0] * ((years - wanted) ** 2).sum(1) / 2).mean()
    return (top == 1)[counts].mean(), {
        "who": (logs * counts).mean(),
        "age": squares,
        "who.top_2": (top <= 2)[counts].mean(),
        "age.mean_absolute_error": np.abs(years - wanted).mean(),
        "age.bias": (years - wanted).sum() / count,
    }


@settings(max_examples=examples(4), deadline=None)
@given(
    machines=st.integers(1, 3),
    positions=st.booleans(),
    apart=st.booleans(),
    micro_batches=st.sampled_from([None, 2]),
    count=st.integers(3, 8),
    seed=st.integers(0, 1 << 20),
)
def test_sums_of_parts_make_the_figures_of_the_whole(
    machines: int, positions: bool, apart: bool, micro_batches: int | None, count: int, seed: int
) -> None:
    graph = network(positions=positions).graph()
    cuts = {"age": Whole(machines - 1)} | ({"who": Whole(0)} if apart or not positions else {})
    plan = partition(
        graph,
        Cluster.local(machines=machines),
        batch=8,
        precision="float64",
        strategy="balanced",
        cuts=cuts,
        micro_batches=micro_batches,
    )
    reported = ReportedSums.of(graph, METRICS)
    reported.check(plan)
    batch = draw_batch(graph, 8, seed)
    parameters = initialise(graph.parameters.values(), 7, dtype="float64")
    replica = InterleavedReplica(plan, parameters, seed=seed, metrics=METRICS)
    found = replica.step(batch, examples=count)
    accuracy, figures = expected(found.states, batch, count, positions=positions)
    assert found.correct / reported.answers(found.sums, count) == pytest.approx(accuracy)
    assert reported.figures(found.sums) == pytest.approx(figures)
    assert found.loss / count == pytest.approx(figures["who"] + 0.25 * figures["age"])


def cut_plan() -> Plan:
    """Whose classes are on two machines."""
    return partition(network(), Cluster.local(machines=2), batch=3, precision="float64", strategy="balanced")


def test_evaluate_computes_metrics_under_any_cut() -> None:
    plan = cut_plan()
    parameters = initialise(plan.graph.parameters.values(), 7, dtype="float64")
    batch = draw_batch(plan.graph, 8, 5)
    whole = InterleavedReplica(
        partition(plan.graph, Cluster.local(machines=1), batch=8, precision="float64"), parameters, seed=0
    ).step(batch)
    accuracy, figures = expected(whole.states, batch, 8, positions=False)
    found = evaluate(Run(plan, parameters), batch, metrics=METRICS, show="nothing")
    assert found.metrics == pytest.approx(figures)
    assert found.accuracy == pytest.approx(accuracy)
    assert f"who {figures['who']:.4g}, age {figures['age']:.4g}, who.top_2" in str(found)


def test_a_step_has_each_loss_and_counts_labels() -> None:
    plan = partition(network(positions=True), Cluster.local(machines=1), batch=4)
    batch = draw_batch(plan.graph, 4, 5)
    with Session(plan, 7, hosts="inline") as session:
        step = session.step(batch)
    assert step.loss == pytest.approx(step.losses["who"] + 0.25 * step.losses["age"])
    assert step.labels == (batch["y"] != PADDING).sum()


def test_metrics_of_cut_classes_are_refused_while_training() -> None:
    plan = cut_plan()
    with pytest.raises(ValueError, match=r"TopK\(.*\) needs all scores of an example, and 'scores' is cut"):
        ReportedSums.of(plan.graph, [TopK(2)]).check(plan)
    ReportedSums.of(plan.graph, [MeanAbsoluteError()]).check(plan)


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ("accuracy", "'accuracy' is no metric; losses with labels always report it; leave it out"),
        (["mae"], "'mae' is no metric; write MeanAbsoluteError()"),
        (["sparse_top_k_categorical_accuracy"], "write TopK(5)"),
        ([TopK], "write TopK()"),
        ([len], "is no metric; give for example TopK(5), or a Metric of your own"),
        (5, "metrics is 5; give a list such as [TopK(5)]"),
    ],
)
def test_what_is_no_metric_is_refused(metrics: object, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        check_metrics(metrics)


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        (TopK(loss="age"), "does not fit the losses of 'several': SoftmaxCrossEntropy 'who', Half"),
        (TopK(loss="what"), "names no loss of 'several'; its losses are who, age"),
    ],
)
def test_metrics_that_do_not_fit_are_refused(metric: Metric, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        ReportedSums.of(network().graph(), [metric])


def test_two_figures_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match=r"is called 'who.top_5', and so is another figure; give it a name="):
        ReportedSums.of(network().graph(), [TopK(), TopK()])
    with pytest.raises(ValueError, match="TopK: k is 0"):
        TopK(0)
    with pytest.raises(TypeError, match="TopK has no argument 'n'"):
        TopK(n=5)  # type: ignore[call-arg]


def test_a_metric_returns_as_many_sums_as_it_says() -> None:
    @dataclass(frozen=True)
    class Wrong(Bias):
        n_sums = 3

    scores = {"scores": np.zeros((2, 4)), "years": np.zeros((2, 3))}
    targets = {"y": np.zeros(2, np.int64), "t": np.ones((2, 3))}
    with pytest.raises(ValueError, match="update returned 2 numbers, and its n_sums is 3"):
        ReportedSums.of(network().graph(), [Wrong()]).of_arrays(scores, targets)


def test_top_k_counts_equal_scores_against_the_label() -> None:
    scores = np.array([[1.0, 2.0, 3.0], [1.0, 1.0, 1.0], [math.nan, 2.0, 3.0]])
    assert TopK(2).update(scores, np.array([1, 0, 0])) == (1.0, 3.0)
    assert TopK(3).update(scores, np.array([0, 0, 1])) == (3.0, 3.0)
    assert math.isnan(TopK(3).result((0.0, 0.0)))
