"""Sessions whose steps come in portions: micro-batches, and overlapped minibatches."""

from __future__ import annotations

import numpy as np
import pytest

from partita.engine import SGD, Adam, Cosine, Run, Session, evaluate, predict
from partita.engine.parameters import initialise
from partita.engine.run.session import Hosts
from partita.engine.runtime.metrics import Metrics
from partita.partitioner import Cluster, Plan, RowSplit, Whole, partition
from tests.faults import toy

HORIZONTAL = {"hidden": Whole(0), "scores": Whole(1), "softmax_cross_entropy": Whole(1)}
VERTICAL = {"hidden": RowSplit(2), "scores": RowSplit(2)}


def plan_of(
    cuts: dict[str, Whole | RowSplit] | dict[str, RowSplit], *, machines: int = 2, micro_batches: int = 1
) -> Plan:
    return partition(
        toy.network(),
        Cluster.local(machines),
        batch=8,
        cuts=cuts,
        precision="float64",
        micro_batches=micro_batches,
    )


def start(plan: Plan, count: int = 1) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    data = toy.data(plan.batch * count)
    return initialise(plan.graph.parameters.values(), 1, dtype="float64"), data


@pytest.mark.parametrize("cuts", [HORIZONTAL, VERTICAL], ids=["horizontal", "vertical"])
def test_what_is_collected_is_of_the_whole_batch(cuts: dict[str, Whole | RowSplit]) -> None:
    names = ("hidden", "scores", "hidden<scores", "gradient", "parameters")
    found = []
    for micro_batches in (1, 4):
        plan = plan_of(cuts, micro_batches=micro_batches)
        parameters, batch = start(plan)
        with Session(plan, parameters, train=True) as session:
            session.step(batch)
            found.append(session.step(collect=names))
    whole, portions = found
    assert portions.loss == pytest.approx(whole.loss, rel=1e-12) and portions.correct == whole.correct
    for name in names[:3]:
        assert whole.collected[name].shape[-1] == 8
        np.testing.assert_allclose(portions.collected[name], whole.collected[name], rtol=1e-10, atol=1e-12)
    for name, gradient in whole.vectors["gradient"].items():
        np.testing.assert_allclose(portions.vectors["gradient"][name], gradient, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("examples", [3, 8, 21])
def test_examples_that_fill_up_a_batch_count_for_nothing(examples: int) -> None:
    """Some micro-batches have real examples, some have none."""
    whole, portions = (plan_of(HORIZONTAL, micro_batches=n) for n in (1, 4))
    parameters, _ = start(whole)
    data = toy.data(examples)
    found, expected = (evaluate(Run(plan, parameters), data) for plan in (portions, whole))
    assert (found.examples, found.accuracy) == (examples, expected.accuracy)
    assert found.loss == pytest.approx(expected.loss, rel=1e-12)
    scores = [predict(Run(plan, parameters), {"picture": data["picture"]}) for plan in (portions, whole)]
    assert scores[0].shape == (examples, 3)
    np.testing.assert_allclose(*scores, rtol=1e-10, atol=1e-12)


def test_alone_overlapped_minibatches_are_plain_steps() -> None:
    """Nothing is late on one machine; schedules and an optimizer's age count each minibatch."""
    plan, optimizer = plan_of({}, machines=1), Adam(Cosine(0.05, 6))
    parameters, data = start(plan, 6)
    with Session(plan, parameters, train=True, optimizer=optimizer) as session:
        for n in range(6):
            batch = {name: array[8 * n : 8 * n + 8] for name, array in data.items()}
            plain = session.step(batch, collect=("parameters",))
    with Session(plan, parameters, train=True, optimizer=optimizer, overlap=3) as session:
        for n in range(2):
            batch = {name: array[24 * n : 24 * n + 24] for name, array in data.items()}
            found = session.step(batch, collect=("parameters",))
    for name, array in plain.vectors["parameters"].items():
        np.testing.assert_array_equal(found.vectors["parameters"][name], array, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_processes_play_micro_batches_as_threads_do(micro_batches: int) -> None:
    """The bits are equal, also over the last batches again without sending them."""
    plan = plan_of(HORIZONTAL, micro_batches=micro_batches)
    parameters, batch = start(plan, 4)
    found = []
    hosts: tuple[Hosts, Hosts] = ("threads", "processes")
    for where in hosts:
        with Session(plan, parameters, train=True, optimizer=SGD(0.3), overlap=4, hosts=where) as session:
            first = session.step(batch)
            resend = session.step(collect=("parameters",))
            assert resend.loss < first.loss
            sent = 4 * micro_batches
            assert [one.messages for one in resend.sent] == [sent, sent]
        found.append((first.loss, resend.loss, resend.vectors["parameters"]))
    assert found[0][:2] == found[1][:2]
    for name, array in found[0][2].items():
        np.testing.assert_array_equal(found[1][2][name], array, err_msg=name)


def test_mistakes_are_named() -> None:
    plan = plan_of(HORIZONTAL)
    parameters, batch = start(plan)
    with pytest.raises(ValueError, match="overlap is 2, but no optimizer follows each minibatch"):
        Session(plan, parameters, train=True, overlap=2)
    with Session(plan, parameters, train=True, optimizer=SGD(0.1), overlap=2) as session:
        with pytest.raises(ValueError, match="the batch has 8 examples, but the plan is for 16; give 16"):
            session.step(batch)
        with pytest.raises(ValueError, match="cannot collect 'hidden'; give a tuple of some of parameters"):
            session.step(collect=("hidden",))


def test_losses_of_micro_batches_add_up_in_their_order() -> None:
    """Whichever ends first."""
    found = []
    for order in ((0, 1, 2), (2, 0, 1)):
        metrics = Metrics()
        for n in range(3):
            metrics.expect(f"loss/{n}")
        for n in order:
            metrics.add(f"loss/{n}", (1e16, 1.0, -1e16)[n], n)
        found.append((metrics.loss, metrics.correct))
    assert found[0] == found[1] and found[0][1] == 3
