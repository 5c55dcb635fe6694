"""Learns a step with every layer, activation, loss and optimizer, and compares it with float64.

    python -m tests.truth.every_layer LOG SEED COUNT

writes down in a file what it compiles (see `symbols`), and plays so many networks in an order drawn from a
seed. States and gradients are those of the layers' definitions, in plain Python and float64; updates are
PyTorch's.
"""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from partita.engine import LARS, SGD, Adagrad, Adam, AdamW, Momentum, Optimizer, RMSProp, Session
from partita.layers import (
    Activation,
    Add,
    AveragePool2D,
    BinaryCrossEntropy,
    Conv2D,
    Dense,
    Graph,
    HalfSquaredError,
    L2Pool2D,
    Layer,
    LocalContrastNormalisation2D,
    LocallyConnected2D,
    Loss,
    MaxPool2D,
    Network,
    Node,
    OneVsRest,
    Patch,
    SoftmaxCrossEntropy,
    per_edge,
    per_node,
)
from partita.partitioner import Cluster, Plan, partition
from tests.kernels.reference import Reference
from tests.networks import FUNCTIONS, leaky_sum, leaky_sum_errors
from tests.parameters.in_torch import torch_of
from tests.truth.interleaved import draw_batch
from tests.truth.symbols import record

Array = npt.NDArray[Any]
Arrays = dict[str, Array]


def halved(incoming):  # type: ignore[no-untyped-def]
    """Cannot be written with the examples innermost, because of the `while`."""
    x = incoming[0]
    while x > 1:
        x = x / 2
    return x


def halved_errors(incoming, state, error):  # type: ignore[no-untyped-def]
    """Backward function: the slope of the activation by the input."""
    slope = 1.0
    x = incoming[0]
    while x > 1:
        x = x / 2
        slope = slope / 2
    return (error * slope + 0 * incoming,)


LAYERS: Final[list[Layer]] = [
    *(Dense(4, activation=f) for f in FUNCTIONS),
    *(LocallyConnected2D(3, 3, activation=f) for f in FUNCTIONS),
    *(Conv2D(4, 3, activation=f) for f in FUNCTIONS),
    Conv2D(4, 2, stride=2, groups=2),
    *(Activation(f) for f in FUNCTIONS),
    MaxPool2D(2),
    AveragePool2D(2),
    L2Pool2D(2),
    LocalContrastNormalisation2D(3, floor=0.5),
    Node(Patch(2), leaky_sum, leaky_sum_errors, (("weight", per_edge("glorot")), ("bias", per_node(0.125)))),
    Node(Patch(1, per_channel=True), halved, halved_errors),
    Add(),
]
LOSSES: Final[list[Loss]] = [SoftmaxCrossEntropy(), OneVsRest(), BinaryCrossEntropy(), HalfSquaredError()]
OPTIMIZERS: Final[list[Optimizer]] = [
    SGD(0.1),
    Momentum(0.1, 0.9),
    Adagrad(0.1),
    RMSProp(0.1),
    Adam(0.1),
    AdamW(0.1),
    LARS(10.0),
]
BATCHES: Final = (4, 32)
"""Too few to fill a vector, and enough."""


SHARED: Final = 0.3
"""Share of the networks in which the layer is called twice, with the same parameters."""


@dataclass(frozen=True)
class Example:
    """A network around a layer, which is called once or twice, and how it learns."""

    layer: Layer
    loss: Loss
    optimizer: Optimizer
    batch: int
    precision: str
    twice: bool = False

    def plan(self) -> Plan:
        net = Network("example")
        image = net.input("image", shape=(5, 5, 2))
        first = Conv2D(2, 2, name="first")(image)
        second = (Activation("tanh")(first),) if isinstance(self.layer, Add) else ()
        found = self.layer(first, *second)
        if self.twice:
            found = Add()(found, self.layer(Activation("tanh")(first), *second))
        scores = Dense(3, name="scores")(found)
        net.loss = self.loss(scores, net.target("wanted"))
        precision: Any = self.precision
        return partition(net, Cluster.local(machines=1), batch=self.batch, precision=precision)

    def check(self) -> None:
        """Plays a step, and one that changes the parameters."""
        plan, tolerance = self.plan(), 2e-4 if self.precision == "float32" else 1e-10
        draw = np.random.default_rng(3)
        parameters = {name: draw.normal(size=p.shape) / 2 for name, p in plan.graph.parameters.items()}
        batch = draw_batch(plan.graph, plan.batch, 5)
        states, gradients = truth(plan.graph, batch, parameters)
        with Session(plan, parameters, train=True, hosts="inline") as session:
            step = session.step(batch, collect=("gradient", *states))
        for name, expected in states.items():
            self._compare(step.collected[name], expected, name, tolerance)
        for name, expected in gradients.items():
            self._compare(step.vectors["gradient"][name], expected, f"gradient of {name}", tolerance)
        with Session(plan, parameters, train=True, optimizer=self.optimizer, hosts="inline") as session:
            changed = session.step(batch, collect=("parameters",)).vectors["parameters"]
        for name, before in parameters.items():
            gradient = step.vectors["gradient"][name].astype(np.float64)
            expected = updated(self.optimizer, before, gradient)
            self._compare(changed[name], expected, f"{name} after {self.optimizer}", tolerance)

    def _compare(self, found: Array, expected: Array, what: str, tolerance: float) -> None:
        scale = max(1.0, float(np.abs(expected).max(initial=0.0)))
        np.testing.assert_allclose(
            found, expected, rtol=0, atol=tolerance * scale, err_msg=f"{what} of {self}"
        )


def truth(graph: Graph, batch: Arrays, parameters: Arrays) -> tuple[Arrays, Arrays]:
    """The states of layers `[*grid, example]`, and the gradients of the mean loss."""
    given = {grid.name for grid in (*graph.inputs, *graph.targets)}
    states = {name: np.moveaxis(batch[name], 0, -1) for name in given}
    layers = {
        grid.name: Reference(grid, [graph[source] for source in grid.sources]) for grid in graph.computed
    }
    own = {grid.name: [parameters[p.name] for p in grid.parameters] for grid in graph.computed}
    for grid in graph.computed:
        states[grid.name] = layers[grid.name].forward([states[s] for s in grid.sources], own[grid.name])
    errors = {grid.name: np.zeros_like(states[grid.name]) for grid in graph.computed}
    gradients: Arrays = {}
    n_examples = len(next(iter(batch.values())))
    for grid in reversed(graph.computed):
        if isinstance(grid.layer, Loss):
            errors[grid.name] += 1 / n_examples
        sources = [states[source] for source in grid.sources]
        down, found = layers[grid.name].backward(
            sources, states[grid.name], errors[grid.name], own[grid.name]
        )
        for parameter, gradient in zip(grid.parameters, found, strict=True):
            gradients[parameter.name] = gradients.get(parameter.name, 0.0) + gradient
        for source, error in zip(grid.sources, down, strict=False):
            if source not in given:
                errors[source] += error
    return {name: array for name, array in states.items() if name not in given}, gradients


def updated(optimizer: Optimizer, before: Array, gradient: Array) -> Array:
    """Values after a first update, in float64."""
    if isinstance(optimizer, LARS):
        norms = [float(np.linalg.norm(array)) for array in (before, gradient)]
        factor = (
            1.0 if 0 in norms else optimizer.trust * norms[0] / (norms[1] + optimizer.weight_decay * norms[0])
        )
        return before - optimizer.learning_rate * factor * (gradient + optimizer.weight_decay * before)
    parameter = torch.nn.Parameter(torch.from_numpy(before.copy()))
    parameter.grad = torch.from_numpy(gradient)
    torch_of(optimizer, parameter).step()
    return parameter.detach().numpy()


def main() -> None:
    """Plays what the command line asks for."""
    log, seed, count = sys.argv[1:]
    record(Path(log))
    draw = random.Random(int(seed))
    layers = draw.sample(LAYERS, min(int(count), len(LAYERS)))
    for k, layer in enumerate(layers):
        loss, optimizer = LOSSES[(k + int(seed)) % len(LOSSES)], OPTIMIZERS[(k + int(seed)) % len(OPTIMIZERS)]
        precision = draw.choice(["float32", "float32", "float64"])
        batch, twice = draw.choice(BATCHES), draw.random() < SHARED
        Example(layer, loss, optimizer, batch, precision, twice).check()


if __name__ == "__main__":
    main()
