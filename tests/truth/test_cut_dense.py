"""Dense layers cut by rows and by inputs in turn, on real hosts, against the whole network."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from partita.engine import SGD, Adagrad, Downpour, Session, train
from partita.engine.parameters import gather, initialise
from partita.engine.parameters.initial_values import initial_vector
from partita.engine.runtime.buffers import layout_of
from partita.layers import Dense, Graph, MaxPool2D, Network, SoftmaxCrossEntropy
from partita.partitioner import Cluster, InputSplit, Plan, Replicated, RowSplit, Whole, partition
from partita.partitioner.assign.cuts import Cut
from tests.drivers.conftest import WatchedThreads, on_threads  # noqa: F401 - a fixture
from tests.truth.interleaved import InterleavedReplica, draw_batch

ALTERNATING: dict[str, Cut] = {
    "pool": Replicated(3),
    "h1": RowSplit(3, sizes=(3, 2, 4)),
    "h2": InputSplit(3, replicated=True),
    "h3": RowSplit(3),
    "h4": InputSplit((2, 0, 1)),
    "scores": InputSplit(2, sizes=(1, 11)),
}


def network() -> Graph:
    net = Network("alternating")
    states = MaxPool2D(2, name="pool")(net.input("x", shape=(4, 6, 2)))
    for n, activation in enumerate(("tanh", "sigmoid", "relu", "linear"), start=1):
        states = Dense(8 + n, activation=activation, use_bias=n != 3, name=f"h{n}")(states)
    net.loss = SoftmaxCrossEntropy(name="loss")(Dense(5, name="scores")(states), net.target("y"))
    return net.graph()


def plan_of(precision: str, cuts: dict[str, Cut] | None = None, *, machines: int = 3) -> Plan:
    given = ALTERNATING if cuts is None else cuts
    return partition(network(), Cluster.local(machines), batch=8, cuts=given, precision=precision)


@pytest.mark.parametrize(
    ("precision", "tolerance"), [("float64", 1e-12), ("float32", 1e-5), ("bfloat16", 0.05)]
)
def test_steps_agree_with_the_whole(precision: str, tolerance: float) -> None:
    """Activations and gradients; threads with messages give the bits of a replica in one thread."""
    cut, whole = plan_of(precision), plan_of(precision, {}, machines=1)
    parameters = initialise(
        cut.graph.parameters.values(), 7, dtype="float64" if precision == "float64" else "float32"
    )
    batch = draw_batch(cut.graph, 8, 3)
    found, expected = (InterleavedReplica(plan, parameters, seed=5).step(batch) for plan in (cut, whole))
    assert found.loss == pytest.approx(expected.loss, rel=tolerance)
    for kind in ("states", "errors", "gradients"):
        for name, array in getattr(expected, kind).items():
            scale = max(1.0, float(np.abs(array).max(initial=0)))
            ours = getattr(found, kind)[name]
            np.testing.assert_allclose(ours, array, rtol=0, atol=tolerance * scale, err_msg=f"{kind} {name}")
    names = (*found.states, *found.errors)
    with Session(cut, parameters, train=True) as session:
        step = session.step(batch, collect=(*names, "gradient"))
    for name, array in (found.states | found.errors).items():
        np.testing.assert_allclose(step.collected[name], array, rtol=0, atol=1e-2 * (precision == "bfloat16"))
    for name, array in found.gradients.items():
        np.testing.assert_array_equal(step.vectors["gradient"][name], array)


def test_machines_draw_their_columns_as_the_whole_is_drawn() -> None:
    plan = plan_of("float32")
    specs = plan.graph.parameters
    whole = initialise(specs.values(), 11)
    for slots in layout_of(plan, shards=2).machines:
        np.testing.assert_array_equal(initial_vector(slots, specs, 11), gather(slots, whole))


def test_a_training_goes_on_under_another_plan(
    on_threads: list[WatchedThreads],  # noqa: F811
    tmp_path: Path,
) -> None:
    """A checkpoint of columns is read by a plan of rows, and the other way round."""
    draw = np.random.default_rng(0)
    data = {"x": draw.normal(size=(64, 4, 6, 2)), "y": draw.integers(0, 5, (64, 1))}
    by_rows = plan_of("float32", {"h2": RowSplit(2), "h4": Whole(1)}, machines=2)
    plans = [plan_of("float32"), by_rows, plan_of("float32", {**ALTERNATING, "h2": InputSplit((1, 2))})]
    driver, before = Downpour(shards=2, optimizer=Adagrad(0.05)), None
    for epochs, plan in enumerate(plans, start=1):
        run = train(
            plan,
            data,
            driver=driver,
            epochs=epochs,
            checkpoints=tmp_path,
            resume=epochs > 1,
            show="nothing",
        )
        assert run.steps == (8 * epochs,)
        assert before != run.parameters["h2.weight"].tobytes()
        before = run.parameters["h2.weight"].tobytes()
    done = train(by_rows, data, driver=driver, epochs=3, checkpoints=tmp_path, resume=True, show="nothing")
    for name, values in run.parameters.items():
        np.testing.assert_array_equal(done.parameters[name], values, err_msg=name)


def test_plain_steps_learn_what_the_whole_learns() -> None:
    cut, whole = plan_of("float64"), plan_of("float64", {}, machines=1)
    batch = draw_batch(cut.graph, 8, 3)
    learnt = []
    for plan in (cut, whole):
        with Session(plan, 3, train=True, optimizer=SGD(0.05, clip_norm=0.5)) as session:
            for _ in range(3):
                step = session.step(batch, collect=("parameters",))
        learnt.append(step.vectors["parameters"])
    for name, values in learnt[1].items():
        np.testing.assert_allclose(learnt[0][name], values, rtol=1e-10, atol=1e-12, err_msg=name)
