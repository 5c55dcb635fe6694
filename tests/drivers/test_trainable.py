"""Parameters that are not trainable keep their values, whatever cuts the network and whoever trains it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from partita.engine import (
    ADMM,
    LBFGS,
    SGD,
    Adagrad,
    AllReduce,
    Downpour,
    FedAvg,
    LocalSGD,
    Momentum,
    Sandblaster,
    train,
)
from partita.engine.drivers.driver import Driver
from partita.engine.parameters import VectorStore, initialise
from partita.engine.parameters.compression import OneBit, TopK
from partita.engine.parameters.storage import Updater
from partita.engine.protocol.commands import POINT
from partita.engine.protocol.events import Span
from partita.layers import BatchNorm, Conv2D, Dense, Graph, Network, SoftmaxCrossEntropy
from partita.partitioner import Cluster, Plan, RowSplit, partition
from tests.draws import examples
from tests.networks import networks
from tests.plans import cuts, kinds
from tests.truth.interleaved import InterleavedReplica, draw_batch


@st.composite
def partly_frozen(draw: st.DrawFn) -> tuple[Plan, Plan]:
    """A plan of a network in which some parameters are not trainable, and one in which all are."""
    graph = draw(networks(shared=True))
    names = sorted(graph.parameters)
    frozen = set(draw(st.lists(st.sampled_from(names), unique=True))) if names else set()
    some = Graph(
        graph.name,
        tuple(
            replace(g, parameters=tuple(replace(p, trainable=p.name not in frozen) for p in g.parameters))
            for g in graph.grids
        ),
        graph.losses,
    )
    machines = draw(st.integers(1, 4))
    by_hand = draw(cuts(graph, machines))
    settled: Any = {"batch": 2, "cuts": by_hand, "precision": "float64", "strategy": "balanced"}
    one, other = (partition(g, Cluster.local(machines=machines), **settled) for g in (some, graph))
    return one, other


@pytest.mark.slow
@settings(max_examples=examples(10), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(drawn=partly_frozen(), kind=kinds, seed=st.integers(0, 1 << 30))
def test_what_is_not_trainable_stays_and_the_rest_learns_the_same(
    drawn: tuple[Plan, Plan], kind: Any, seed: int
) -> None:
    """No gradient of it is computed or sent; messages are those of the plan; other updates are the same."""
    results = []
    for plan in drawn:
        first = initialise(plan.graph.parameters.values(), 7, dtype="float64")
        optimizer = SGD(0.1, weight_decay=0.5)
        replica = InterleavedReplica(plan, first, seed=seed, kind=kind, optimizer=optimizer)
        step = replica.step(draw_batch(plan.graph, plan.batch, 11))
        planned = sorted((str(m.buffer), m.rows, m.source, m.destination) for m in plan.messages_for(kind))
        assert sorted(sent[:4] for sent in step.sent) == planned
        results.append(step.parameters)
    some, every = results
    for name in drawn[0].graph.parameters:
        expected = first[name] if name in drawn[0].graph.frozen or not kind.train else every[name]
        np.testing.assert_allclose(some[name], expected, rtol=1e-11, atol=1e-13, err_msg=name)


def test_a_shard_leaves_what_is_not_trainable() -> None:
    """Not even a decay of weights changes it, and a push of several pieces is taken apart rightly."""
    store = VectorStore(np.ones(10))
    updater = Updater(Momentum(0.5, weight_decay=0.5), store, learning=((1, 4), (6, 9)))
    updater.apply(Span(POINT, 0, 10), [np.ones(3), np.ones(4), np.ones(3)], 0)
    expected = np.ones(10)
    expected[[1, 2, 3, 6, 7, 8]] = 0.25
    np.testing.assert_array_equal(store.vector(POINT), expected)


def network(**trainable: bool) -> Network:
    net = Network("frozen")
    filters = Conv2D(2, 3, name="filters", trainable=trainable.get("filters", True))
    scores = Dense(3, name="scores", trainable=trainable.get("scores", True))
    net.loss = SoftmaxCrossEntropy()(scores(filters(net.input("x", shape=(6, 5, 1)))), net.target("y"))
    return net


def trained(net: Network, driver: Driver, **settings: Any) -> Any:
    draw = np.random.default_rng(5)
    x = draw.normal(size=(40, 6, 5, 1))
    cut = {"filters": RowSplit(2), "scores": RowSplit(2)}
    plan = partition(net, Cluster.local(machines=2), batch=10, cuts=cut, precision="float64")
    data = {"x": x, "y": x[:, 0, :3, 0].argmax(1)}
    return plan, train(plan, data, driver=driver, show="nothing", **settings)


DECAYING = [
    Downpour(optimizer=SGD(0.5, weight_decay=0.1), shards=2),
    Downpour(optimizer=Adagrad(0.5, weight_decay=0.1, clip_norm=1.0), shards=3, push_every=2),
    AllReduce(optimizer=Momentum(0.5, weight_decay=0.1, clip_norm=1.0)),
    Sandblaster(method=LBFGS(max_iterations=2)),
]


@pytest.mark.parametrize("driver", DECAYING, ids=["sgd", "clipped", "all-reduce", "lbfgs"])
@pytest.mark.parametrize("frozen", ["filters", "scores"])
def test_no_driver_changes_what_is_not_trainable(driver: Driver, frozen: str, on_threads: object) -> None:
    epochs = {} if isinstance(driver, Sandblaster) else {"epochs": 2}
    plan, run = trained(network(**{frozen: False}), driver, **epochs)
    for name, before in initialise(plan.graph.parameters.values(), 0, dtype="float64").items():
        changed = not np.array_equal(run.parameters[name], before)
        assert changed == (not name.startswith(frozen)), name


def test_resuming_may_train_other_parameters(tmp_path: Path, on_threads: object) -> None:
    driver = Downpour(optimizer=Adagrad(0.5), shards=2)
    kept: dict[str, Any] = {"checkpoints": tmp_path, "epochs": 2}
    _, first = trained(network(filters=False), driver, **kept)
    _, second = trained(network(scores=False), driver, **{**kept, "epochs": 4}, resume=True)
    for name in first.parameters:
        same = np.array_equal(first.parameters[name], second.parameters[name])
        assert same == name.startswith("scores"), name


def test_sandblaster_says_why_it_has_no_l2_then(on_threads: object) -> None:
    with pytest.raises(ValueError, match=r"l2 is a term of all .*scores\.bias, scores\.weight must keep"):
        trained(network(scores=False), Sandblaster(l2=0.1))


def test_trainable_is_true_or_false() -> None:
    with pytest.raises(ValueError, match="Dense: trainable is 1"):
        Dense(3, trainable=1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="did you mean 'trainable'"):
        Dense(3, requires_grad=False)  # type: ignore[call-arg]


def test_a_network_counts_what_does_not_learn() -> None:
    assert str(network(scores=False).graph()).startswith("network frozen: 95 parameters, 75 of them not")


@pytest.fixture(scope="module")
def normalised() -> Plan:
    """Running averages of the inputs, which depend on no weights, before a layer that does not learn."""
    net = Network("normalised")
    x = BatchNorm(name="norm")(net.input("x", shape=3))
    scores = Dense(2, name="scores")(Dense(4, trainable=False, activation="tanh", name="frozen")(x))
    net.loss = SoftmaxCrossEntropy()(scores, net.target("y"))
    return partition(net, Cluster.local(), batch=4, precision="float64")


@pytest.mark.parametrize(
    ("plain", "drawn_together"),
    [
        (ADMM(replicas=2, every=3), ADMM(replicas=2, every=3, l2=1.0, rho=2.0)),
        (FedAvg(2, 3, 1.0), FedAvg(2, 3, 1.0, proximal=1.0, server_momentum=0.9)),
        (AllReduce(replicas=2), AllReduce(replicas=2, compress=TopK(0.1, 0.9))),
        (LocalSGD(replicas=2, every=2), LocalSGD(replicas=2, every=2, compress=OneBit())),
        (Downpour(replicas=1), Downpour(replicas=1, compress=TopK(0.1, 0.9))),
    ],
    ids=["ADMM", "FedAvg", "AllReduce", "LocalSGD", "Downpour"],
)
def test_penalties_momentum_and_compression_are_for_numbers_that_learn(
    on_threads: Any, normalised: Plan, plain: Driver, drawn_together: Driver
) -> None:
    """Frozen weights stay, and running averages are those of the data, under any of a driver's terms."""
    draw = np.random.default_rng(0)
    data = {"x": draw.normal(5, 3, (24, 3)), "y": draw.integers(0, 2, 24)}
    first = initialise(normalised.graph.parameters.values(), 0, dtype="float64")
    epochs: dict[str, Any] = {} if plain.ends else {"epochs": 2}
    one, other = (
        train(normalised, data, driver=driver, show="nothing", **epochs).parameters
        for driver in (plain, drawn_together)
    )
    np.testing.assert_allclose(other["frozen.weight"], first["frozen.weight"], rtol=1e-12)
    for name in ("norm.running_mean", "norm.running_variance"):
        np.testing.assert_allclose(other[name], one[name], rtol=1e-12)
    assert (one["norm.running_mean"] > 1).all()
    assert np.abs(one["scores.weight"] - other["scores.weight"]).max() > 1e-3
