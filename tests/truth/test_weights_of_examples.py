"""`sample_weight` and `class_weight` of `train` and `evaluate`: as torch weighs losses, under any cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch.nn import functional

from partita.engine import SGD, Downpour, Run, evaluate, train
from partita.engine.parameters import initialise
from partita.layers import (
    BinaryCrossEntropy,
    Dense,
    HalfSquaredError,
    Linear,
    Network,
    ScoreSum,
    SoftmaxCrossEntropy,
)
from partita.partitioner import Cluster, Plan, partition
from tests.drivers.conftest import on_threads  # noqa: F401 - a fixture

EXAMPLES, CLASSES, STEPS, RATE = 10, 4, 3, 0.3
random = np.random.default_rng(2)
WEIGHTS = random.uniform(0.2, 3.0, EXAMPLES)
CLASS_WEIGHT = {0: 2.5, 3: 0.25}
DATA = {"x": random.normal(size=(EXAMPLES, 6)), "y": np.arange(EXAMPLES) % CLASSES}
OF_LABELS = np.array([CLASS_WEIGHT.get(int(label), 1.0) for label in DATA["y"]])
COLUMN = DATA | {"cost": WEIGHTS}


def plan_of(machines: int) -> Plan:
    net = Network("weighed")
    scores = Dense(CLASSES, name="scores")(
        Dense(5, activation="tanh", name="hidden")(net.input("x", shape=6))
    )
    net.loss = SoftmaxCrossEntropy()(scores, net.target("y"))
    cluster = Cluster.local(machines=machines)
    return partition(net, cluster, batch=EXAMPLES, precision="float64", strategy="balanced")


def in_torch(start: dict[str, Any], weights: npt.NDArray[Any]) -> tuple[dict[str, Any], list[float]]:
    """Parameters after some steps, and the weighted loss before each and after the last."""
    leaves = {name: torch.tensor(value, requires_grad=True) for name, value in start.items()}
    x, y = torch.from_numpy(DATA["x"]), torch.from_numpy(DATA["y"])
    losses = []
    for _ in range(STEPS + 1):
        hidden = torch.tanh(x @ leaves["hidden.weight"].T + leaves["hidden.bias"])
        scores = hidden @ leaves["scores.weight"].T + leaves["scores.bias"]
        each = functional.cross_entropy(scores, y, reduction="none")
        loss = (each * torch.from_numpy(weights)).mean()
        losses.append(loss.item())
        if len(losses) <= STEPS:
            gradients = torch.autograd.grad(loss, list(leaves.values()))
            with torch.no_grad():
                for leaf, gradient in zip(leaves.values(), gradients, strict=True):
                    leaf -= RATE * gradient
    return {name: leaf.detach().numpy() for name, leaf in leaves.items()}, losses


@pytest.mark.parametrize(
    ("machines", "data", "given", "weights"),
    [
        (1, DATA, {"sample_weight": WEIGHTS}, WEIGHTS),
        pytest.param(2, COLUMN, {"sample_weight": "cost"}, WEIGHTS, marks=pytest.mark.slow),
        pytest.param(3, DATA, {"class_weight": CLASS_WEIGHT}, OF_LABELS, marks=pytest.mark.slow),
        (4, COLUMN, {"sample_weight": "cost", "class_weight": CLASS_WEIGHT}, WEIGHTS * OF_LABELS),
    ],
)
def test_training_and_evaluation_equal_torch(
    machines: int,
    data: dict[str, Any],
    given: dict[str, Any],
    weights: npt.NDArray[Any],
    on_threads: object,  # noqa: F811
) -> None:
    plan = plan_of(machines)
    start = initialise(plan.graph.parameters.values(), 1, dtype="float64")
    expected, losses = in_torch(start, weights)
    driver = Downpour(optimizer=SGD(RATE))
    run = train(
        plan, data, driver=driver, epochs=STEPS, initial=start, show="nothing", validation=DATA, **given
    )
    for name, values in expected.items():
        np.testing.assert_allclose(run.parameters[name], values, rtol=1e-10, atol=1e-12, err_msg=name)
    assert evaluate(run, data, show="nothing", **given).loss == pytest.approx(losses[-1], rel=1e-10)
    assert run.plan.graph == plan.graph, "the trained network has no further target"
    plain = evaluate(run, DATA, show="nothing").loss
    assert run.validations[-1].metrics["val_loss"] == pytest.approx(plain, rel=1e-12)


def evaluated(net: Network, data: dict[str, Any], **given: Any) -> float:
    plan = partition(net, Cluster.local(machines=2), batch=4, precision="float64", strategy="balanced")
    start = initialise(plan.graph.parameters.values(), 1, dtype="float64")
    return evaluate(Run(plan, start), data, show="nothing", **given).loss


def of_each(net: Network, data: dict[str, Any]) -> list[float]:
    """The loss of each example alone."""
    examples = range(len(data["x"]))
    return [evaluated(net, {name: array[n : n + 1] for name, array in data.items()}) for n in examples]


def test_positions_of_an_example_have_its_weight_or_their_own() -> None:
    net = Network("words")
    net.loss = SoftmaxCrossEntropy(ignore_index=-1)(
        Linear(CLASSES)(net.input("x", shape=(3, 2))), net.target("y")
    )
    draw = np.random.default_rng(5)
    data = {"x": draw.normal(size=(7, 3, 2)), "y": draw.integers(-1, CLASSES, size=(7, 3))}
    own = draw.uniform(size=(7, 3))
    lost = of_each(net, data)
    of_examples = evaluated(net, data, sample_weight=own[:, 0])
    assert of_examples == pytest.approx(float(np.mean(own[:, 0] * lost)), rel=1e-10)
    of_positions = [
        evaluated(net, data | {"y": np.where(np.arange(3) == n, data["y"], -1)}, sample_weight=own[:, n])
        for n in range(3)
    ]
    assert evaluated(net, data, sample_weight=own) == pytest.approx(sum(of_positions), rel=1e-10)
    by_label = np.where(data["y"] == 2, 3.0, 1.0)
    expected = evaluated(net, data, sample_weight=by_label * own)
    found = evaluated(net, data, sample_weight=own, class_weight={2: 3.0})
    assert found == pytest.approx(expected, rel=1e-12)


def test_each_of_several_losses_is_weighed() -> None:
    net = Network("two")
    x = net.input("x", shape=3)
    sold = BinaryCrossEntropy(name="sale")(Dense(1, name="score")(x), net.target("sold"))
    net.loss = sold + 0.5 * HalfSquaredError(name="years")(Dense(2, name="age_of")(x), net.target("age"))
    draw = np.random.default_rng(5)
    data = {
        "x": draw.normal(size=(7, 3)),
        "sold": draw.integers(0, 2, size=7).astype(float),
        "age": draw.normal(size=(7, 2)),
    }
    of_examples = draw.uniform(size=7)
    lost = of_each(net, data)
    found = evaluated(net, data, sample_weight=of_examples)
    assert found == pytest.approx(float(np.mean(of_examples * lost)), rel=1e-10)
    of_labels = [evaluated(net, data, class_weight=one) for one in ({0: 2.0}, {1: 2.0}, {0: 2.0, 1: 2.0}, {})]
    first, second, both, plain = of_labels
    assert first - plain + second - plain == pytest.approx(both - plain, rel=1e-9)
    assert min(first, second) > plain


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sample_weight": WEIGHTS[1:]}, "sample_weight has 9 numbers, and the data 10 examples"),
        ({"sample_weight": "costs"}, "the data has no 'costs', which sample_weight names; it has 'x', 'y'"),
        ({"sample_weight": np.full(EXAMPLES, np.nan)}, "sample_weight' is not finite in 10 of 10"),
        ({"sample_weight": np.ones((EXAMPLES, 2))}, r"has shape .10, 2., but the network declares"),
        ({"sample_weight": np.ones((1, 1, 1))}, "give an array with a number for each example, or the name"),
        ({"class_weight": {4: 1.0}}, "a weight for 4; labels are whole numbers from 0 to 3"),
        ({"class_weight": {True: 1.0}}, "a weight for True"),
        ({"class_weight": {1: np.inf}}, "the class_weight of label 1 is inf"),
        ({"class_weight": [1.0, 2.0]}, "give weights by label"),
    ],
)
def test_wrong_weights_are_refused(given: dict[str, Any], message: str) -> None:
    plan = plan_of(1)
    start = initialise(plan.graph.parameters.values(), 1, dtype="float64")
    with pytest.raises(ValueError, match=message):
        evaluate(Run(plan, start), DATA, show="nothing", **given)


def test_a_network_that_cannot_be_weighed_so_says_what_to_write() -> None:
    net = Network("prices")
    scores = Dense(1)(net.input("x", shape=6))
    net.loss = HalfSquaredError()(scores, net.target("y"), sample_weight=net.target("w"))
    data = {"x": DATA["x"], "y": WEIGHTS, "w": WEIGHTS}
    with pytest.raises(ValueError, match="weights of examples from the target 'w'; give them in the data"):
        evaluated(net, data, sample_weight=WEIGHTS)
    without = Network("prices")
    without.loss = HalfSquaredError()(Dense(1)(without.input("x", shape=6)), without.target("y"))
    with pytest.raises(ValueError, match=r"class_weight is for the loss over labels, and .* has none"):
        evaluated(without, data, class_weight={0: 1.0})
    without = Network("energy")
    without.loss = ScoreSum()(Dense(1)(without.input("x", shape=6)))
    with pytest.raises(ValueError, match="no loss of network 'energy' takes a target"):
        evaluated(without, data, sample_weight=WEIGHTS)
