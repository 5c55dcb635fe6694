"""For writers of nodes: is `downward` the derivative of `upward`? Compares the two by differences, in plain
Python.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from partita.engine.kernels.kernel import Array
from partita.engine.kernels.parameters import is_per_node
from partita.engine.kernels.reference import differences
from partita.layers.graph import Grid
from partita.layers.layer import Layer
from partita.layers.network import Network
from partita.layers.region import Shape


@dataclass(frozen=True)
class Mismatch:
    """A number that `downward` returns and that differences contradict."""

    what: str
    downward: float
    differences: float

    def __str__(self) -> str:
        return f"{self.what}: downward returns {self.downward:.6g}, differences give {self.differences:.6g}"


@dataclass(frozen=True)
class GradientCheck:
    """What was compared, and where the two disagree. Print it; it is true when all agree."""

    layer: str
    compared: int
    mismatches: tuple[Mismatch, ...]

    def __bool__(self) -> bool:
        return not self.mismatches

    def __str__(self) -> str:
        if not self.mismatches:
            return f"{self.layer}: downward agrees with differences of upward in {self.compared} numbers"
        shown = [f"  {mismatch}" for mismatch in self.mismatches[:10]]
        rest = len(self.mismatches) - len(shown)
        head = f"{self.layer}: downward is wrong in {len(self.mismatches)} of {self.compared} numbers"
        return "\n".join([head, *shown, *([f"  ... and {rest} more"] if rest else [])])


def check_gradients(
    layer: Layer, input_shape: Shape, *, nodes: int = 10, seed: int = 0, tolerance: float = 1e-5
) -> GradientCheck:
    """Compares a layer's `downward` with central differences of its `upward`, both as plain Python in
    float64.

    Incoming states, parameters and errors are drawn from a normal distribution. At a kink (a rectifier at
    zero, two equal maxima) there is no derivative; it is unlikely that a draw hits one, and another seed
    avoids it.

    Args:
        layer: with a node definition of one input, for example `leaky_sum(8)`.
        input_shape: of its input, for example `(8, 8, 1)`. Small is enough.
        nodes: how many nodes are tried, spread over the grid.
        seed: of the draws.
        tolerance: how far the two may differ, relative to the larger, or absolutely below 1.

    Returns:
        A report that prints what differs, and is true when nothing does.

    Raises:
        ValueError: the layer does not fit the input, or has no `downward`.
    """
    grid = _placed(layer, input_shape)
    definition = layer.definition
    if definition is None or definition.downward is None:
        raise ValueError(f"{layer.kind} has no downward function to check; give it one with @....downward")
    offsets, _ = layer.connectivity.edges((0, grid.n_rows), grid.shape, input_shape)
    draw = np.random.default_rng(seed)
    compared, mismatches = 0, []
    for n in np.unique(np.linspace(0, grid.n_nodes - 1, nodes).astype(int)):
        values = _drawn(grid, int(offsets[n + 1] - offsets[n]), draw)
        for what, found, expected in _of_one_node(grid, values, float(draw.normal())):
            compared += 1
            if not abs(found - expected) <= tolerance * max(1.0, abs(found), abs(expected)):
                mismatches.append(Mismatch(f"{what} of node {n}", found, expected))
    return GradientCheck(layer.kind, compared, tuple(mismatches))


def _placed(layer: Layer, input_shape: Shape) -> Grid:
    network = Network("check")
    states = layer(network.input("input", shape=input_shape))
    return network.graph()[states.name]


def _drawn(grid: Grid, n_edges: int, draw: np.random.Generator) -> list[Array]:
    """Incoming states, then each parameter of one node; numbers are arrays without axes."""
    per_node = [is_per_node(parameter, grid) for parameter in grid.parameters]
    sizes = [() if single else (n_edges,) for single in per_node]
    return [draw.normal(size=n_edges), *(np.asarray(draw.normal(size=size)) for size in sizes)]


def _of_one_node(grid: Grid, values: list[Array], error: float) -> Iterator[tuple[str, float, float]]:
    """Every number of one node: its name, what `downward` returns, what differences give."""
    definition = grid.layer.definition
    assert definition is not None
    assert definition.downward is not None
    state = float(definition.upward(*_arguments(values)))
    results = definition.downward(*_arguments(values), state, error)
    names = ["errors", *(f"gradient of {p.name.rpartition('.')[2]}" for p in grid.parameters)]
    if not isinstance(results, tuple) or len(results) != len(names):
        raise ValueError(
            f"{grid.layer.kind}: downward must return the tuple "
            f"({', '.join(names)}{',' if len(names) == 1 else ''}), but returns {results!r}"
        )
    for i, (name, result) in enumerate(zip(names, results, strict=True)):

        def sent(moved: Array, i: int = i) -> float:
            changed = [*values[:i], moved, *values[i + 1 :]]
            return error * float(definition.upward(*_arguments(changed)))

        expected, found = differences(sent, values[i]), np.asarray(result, dtype=np.float64)
        if found.shape != expected.shape:
            raise ValueError(
                f"{grid.layer.kind}: {name} have shape {found.shape}; it must be {expected.shape}"
            )
        for place in np.ndindex(expected.shape):
            where = f"[{place[0]}]" if place else ""
            yield f"{name}{where}", float(found[place]), float(expected[place])


def _arguments(values: list[Array]) -> list[Any]:
    """As the functions receive them: incoming states of their own, parameters that nobody can change."""
    incoming, *parameters = values
    return [incoming.copy(), *(_frozen(value) if value.ndim else float(value) for value in parameters)]


def _frozen(array: Array) -> Array:
    view = array.view()
    view.flags.writeable = False
    return view
