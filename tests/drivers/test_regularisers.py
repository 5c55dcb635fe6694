"""Regularisers of layers: the same as a decay of weights, for any cut and driver; counted once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from partita.engine import LBFGS, SGD, AllReduce, Downpour, Sandblaster, Session, train
from partita.engine.drivers.driver import Driver
from partita.engine.drivers.identity import identity
from partita.engine.parameters import initialise
from partita.layers import (
    GRU,
    L1,
    L1L2,
    L2,
    LSTM,
    Conv2D,
    Dense,
    FeedForward,
    HalfSquaredError,
    MultiHeadAttention,
    Network,
    SoftmaxCrossEntropy,
)
from partita.partitioner import Cluster, InputSplit, Plan, RowSplit, partition


def fourth_powers(weight: Any) -> Any:
    """A user's own function."""
    return 0.01 * (weight**4).sum()


def network(regulariser: Any, *, use_bias: bool = False, **settings: Any) -> Network:
    net = Network("penalised")
    more = {"regulariser": regulariser, "use_bias": use_bias, "initialiser": "he", **settings}
    filters = Conv2D(2, 3, name="filters", activation="tanh", **more)(net.input("x", shape=(6, 5, 1)))
    hidden = Dense(6, name="hidden", activation="tanh", **more)(filters)
    net.loss = SoftmaxCrossEntropy()(Dense(3, name="scores", **more)(hidden), net.target("y"))
    return net


CUTS: dict[str, Any] = {"filters": RowSplit(2), "hidden": InputSplit(2), "scores": RowSplit(2)}
DRAW = np.random.default_rng(5)
X = DRAW.normal(size=(37, 6, 5, 1))
DATA = {"x": X, "y": X[:, 0, :3, 0].argmax(1)}


def plan_of(net: Network, *, cut: bool = True, micro_batches: int = 1) -> Plan:
    return partition(
        net,
        Cluster.local(machines=2 if cut else 1),
        batch=10,
        cuts=CUTS if cut else {},
        micro_batches=micro_batches,
        precision="float64",
    )


@pytest.mark.parametrize(
    ("regulariser", "value", "slope"),
    [
        (L1L2(0.01, 0.02), lambda w: 0.01 * abs(w) + 0.02 * w**2, lambda w: 0.01 * np.sign(w) + 0.04 * w),
        (fourth_powers, lambda w: 0.01 * w**4, lambda w: 0.04 * w**3),
    ],
    ids=["both", "own"],
)
def test_a_term_is_added_once_to_gradient_and_loss(regulariser: Any, value: Any, slope: Any) -> None:
    """Shared filters of two machines, inputs cut over machines, micro-batches; biases have no term."""
    batch = {name: array[:10] for name, array in DATA.items()}
    steps = []
    for one in (None, regulariser):
        plan = plan_of(network(one, use_bias=True), micro_batches=2)
        with Session(plan, 3, train=True, hosts="threads") as session:
            steps.append(session.step(batch, collect=("gradient", "parameters")))
    plain, penalised = steps
    total = 0.0
    for name, weights in plain.vectors["parameters"].items():
        extra = 0 if name.endswith("bias") else slope(weights)
        total += 0 if name.endswith("bias") else value(weights).sum()
        found = penalised.vectors["gradient"][name] - plain.vectors["gradient"][name]
        np.testing.assert_allclose(found, extra + 0 * weights, rtol=1e-11, atol=1e-14, err_msg=name)
    assert penalised.loss - plain.loss == pytest.approx(total, rel=1e-12)


SAME: list[tuple[Driver, Driver]] = [
    (AllReduce(optimizer=SGD(0.5), replicas=2), AllReduce(optimizer=SGD(0.5, weight_decay=0.1), replicas=2)),
    (Downpour(optimizer=SGD(0.5), shards=2), Downpour(optimizer=SGD(0.5, weight_decay=0.1), shards=2)),
    (Sandblaster(LBFGS(max_iterations=4)), Sandblaster(LBFGS(max_iterations=4), l2=0.1)),
]


@pytest.mark.parametrize(("own", "given"), SAME, ids=["all-reduce", "downpour", "lbfgs"])
def test_a_square_is_a_decay_of_weights_with_every_driver(
    own: Driver, given: Driver, on_threads: object
) -> None:
    """Also where the last batch or portion is not full: the shares of replicas and portions add up to 1."""
    settings: dict[str, Any] = {} if isinstance(own, Sandblaster) else {"epochs": 2}
    one = train(plan_of(network(L2(0.05))), DATA, driver=own, show="nothing", **settings)
    other = train(plan_of(network(None), cut=False), DATA, driver=given, show="nothing", **settings)
    for name, values in one.parameters.items():
        np.testing.assert_allclose(other.parameters[name], values, rtol=1e-8, atol=1e-11, err_msg=name)


def test_what_is_not_trainable_has_no_term() -> None:
    net = network(L2(1.0), trainable=False)
    with Session(plan_of(net), 3, train=True, hosts="threads") as session:
        found = session.step({name: array[:10] for name, array in DATA.items()}).loss
    with Session(plan_of(network(None)), 3, train=True, hosts="threads") as session:
        assert session.step({name: array[:10] for name, array in DATA.items()}).loss == pytest.approx(found)


def test_a_network_without_one_is_what_it_was() -> None:
    plain, one = (identity(network(given).graph())["hidden"] for given in (None, L1(0.5)))
    assert "regulariser" not in plain and "regulariser=L1L2(l1=0.5, l2=0.0)" in one


def test_what_is_no_regulariser_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Dense: the regulariser is 'l2'; write L2\(1e-4\)"):
        Dense(3, regulariser="l2")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="the factor l2 is -1"):
        L2(-1.0)


@pytest.mark.parametrize("machines", [1, 2])
def test_layers_of_sequences_have_terms_for_their_weights(machines: int) -> None:
    """Those of every gate, head and projection; no bias has one, whatever its name."""
    steps = []
    for regulariser in (None, L2(0.5)):
        net = Network("sequences")
        more: Any = {"regulariser": regulariser, "initialiser": "he"}
        x = net.input("x", shape=(4, 4))
        for rows in ("positions", "heads"):
            x = MultiHeadAttention(2, rows=rows, **more)(x)
        for rows in ("positions", "units"):
            x = FeedForward(3, rows=rows, **more)(x)
        x = LSTM(3, **more)(GRU(3, return_sequences=True, **more)(x))
        net.loss = HalfSquaredError()(x, net.target("y"))
        plan = partition(net, Cluster.local(machines), batch=5, precision="float64", strategy="balanced")
        parameters = initialise(plan.graph.parameters.values(), 3, dtype="float64")
        batch = {"x": np.ones((5, 4, 4)), "y": np.zeros((5, 3))}
        with Session(plan, parameters, train=True, hosts="threads") as session:
            steps.append(session.step(batch, collect=("gradient",)))
    plain, with_term = (step.vectors["gradient"] for step in steps)
    squares = 0.0
    for name, values in parameters.items():
        term = 0.0 * values if "bias" in name else values
        squares += 0.5 * float((term**2).sum())
        np.testing.assert_allclose(with_term[name], plain[name] + term, rtol=1e-9, atol=1e-12, err_msg=name)
    assert steps[1].loss == pytest.approx(steps[0].loss + squares)
