"""Checks a user's node: compares `downward`, written or derived, with differences of `upward`."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np

from partita.engine.kernels.kernel import Array
from partita.engine.kernels.node import signature_of
from partita.engine.kernels.nodes.derived import derived_downward
from partita.engine.kernels.parameters import is_per_node
from partita.layers.box import Shape
from partita.layers.graph import Grid
from partita.layers.layer import Layer, NodeDefinition, Placeholder
from partita.layers.losses import Loss
from partita.layers.network import Network


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
    """The result of a comparison. Print it; it is true when all numbers agree."""

    layer: str
    compared: int
    mismatches: tuple[Mismatch, ...]
    derived: bool = False

    def __bool__(self) -> bool:
        return not self.mismatches

    def __str__(self) -> str:
        downward = "the derived downward" if self.derived else "downward"
        if not self.mismatches:
            return f"{self.layer}: {downward} agrees with differences of upward in {self.compared} numbers"
        shown = [f"  {mismatch}" for mismatch in self.mismatches[:10]]
        rest = len(self.mismatches) - len(shown)
        head = f"{self.layer}: {downward} is wrong in {len(self.mismatches)} of {self.compared} numbers"
        return "\n".join([head, *shown, *([f"  ... and {rest} more"] if rest else [])])


def check_gradients(
    layer: Layer, *input_shapes: Shape, nodes: int = 10, seed: int = 0, tolerance: float = 1e-5
) -> GradientCheck:
    """Compares a layer's `downward` with central differences of its `upward`, both as plain Python in
    float64. Of a node without `downward` the derived one is compared, which is computed in torch.

    Incoming states, parameters and errors are drawn from a normal distribution, the target of a loss evenly.
    At a kink (a rectifier at zero, two equal maxima) there is no derivative; it is unlikely that a draw hits
    one, and another seed avoids it.

    Args:
        layer: with a node definition: one of your own, like `leaky_sum(8)`, or a built-in one.
        input_shapes: of its inputs, for example `(8, 8, 1)`; of a loss, of its scores. Small is enough.
        nodes: number of nodes to try, spread over the grid.
        seed: of the draws.
        tolerance: allowed difference, relative to the larger number, or absolute below 1.

    Returns:
        A report that prints what differs, and is true when nothing does.

    Raises:
        ValueError: the layer does not fit the inputs, or has a `downward` that returns something else, or
            none where none can be derived.
    """
    if not input_shapes:
        raise ValueError(f"{layer.kind}: give the shape of its input too, for example (8, 8, 1)")
    grid, sources = _placed(layer, input_shapes)
    definition, derived = _both_functions(grid, sources)
    inputs = [source.shape for source in sources if not _is_target(source)]
    pairs, rows = zip(grid.wirings, inputs, strict=False), (0, grid.n_rows)
    offsets = [wiring.edges(rows, grid.shape, shape)[0] for wiring, shape in pairs]
    draw = np.random.default_rng(seed)
    compared, mismatches = 0, []
    for n in np.unique(np.linspace(0, grid.n_nodes - 1, nodes).astype(int)):
        node = _Node(grid, definition, tuple(int(of_input[n + 1] - of_input[n]) for of_input in offsets))
        values = node.drawn(sources, draw)
        for what, found, expected in node.compared(values, float(draw.normal())):
            compared += 1
            if not abs(found - expected) <= tolerance * max(1.0, abs(found), abs(expected)):
                mismatches.append(Mismatch(f"{what} of node {n}", found, expected))
    return GradientCheck(layer.kind, compared, tuple(mismatches), derived)


def _placed(layer: Layer, shapes: tuple[Shape, ...]) -> tuple[Grid, tuple[Grid, ...]]:
    """Places the layer, and a target if it is a loss, over inputs of these shapes; returns all."""
    network = Network("check")
    inputs = [network.input(f"input_{i}", shape=shape) for i, shape in enumerate(shapes)]
    if isinstance(layer, Loss):
        states = network.add(layer, (*inputs, network.target("target")))
        network.loss = states
    else:
        states = layer(*inputs)
    graph = network.graph()
    return graph[states.name], tuple(graph[name] for name in graph[states.name].sources)


def _both_functions(grid: Grid, sources: tuple[Grid, ...]) -> tuple[NodeDefinition, bool]:
    """Returns the definition of a layer, with a `downward`, and whether that is derived."""
    layer, definition = grid.layer, grid.layer.definition
    if definition is None:
        raise ValueError(f"{layer.kind} has no node definition, so there is nothing to compare")
    if definition.downward is not None:
        return definition, False
    if isinstance(layer, Loss):
        raise ValueError(f"{layer.kind} is a loss without a downward function; write one in its definition")
    signature, label = signature_of(grid, sources, "float64"), f"{layer.kind} '{grid.name}'"
    return replace(definition, downward=derived_downward(definition.upward, signature, label=label)), True


def _is_target(grid: Grid) -> bool:
    return isinstance(grid.layer, Placeholder) and grid.layer.role == "target"


@dataclass(frozen=True)
class _Node:
    """A node of a layer, and its number of edges to each input."""

    grid: Grid
    definition: NodeDefinition
    n_edges: tuple[int, ...]

    def drawn(self, sources: tuple[Grid, ...], draw: np.random.Generator) -> list[Array]:
        """Draws incoming states, then the functions' next arguments; numbers are arrays without axes."""
        incoming = draw.normal(size=sum(self.n_edges))
        for target in filter(_is_target, sources):
            assert isinstance(target.layer, Placeholder)
            label = target.layer.classes and draw.integers(target.layer.classes)
            return [incoming, np.asarray(draw.uniform(size=target.n_nodes) if label is None else label)]
        single = [is_per_node(parameter, self.grid) for parameter in self.grid.parameters]
        sizes = [() if of_node else incoming.shape for of_node in single]
        return [incoming, *(np.asarray(draw.normal(size=size)) for size in sizes)]

    def compared(self, values: list[Array], error: float) -> Iterator[tuple[str, float, float]]:
        """Yields every number of the node: its name, the result of `downward`, and of differences."""
        for i, (name, result) in enumerate(self._results(values, error)):

            def sent(moved: Array, i: int = i) -> float:
                changed = [*values[:i], moved, *values[i + 1 :]]
                return error * float(self.definition.upward(*_arguments(changed)))

            expected, found = differences(sent, values[i]), np.asarray(result, dtype=np.float64)
            if found.shape != expected.shape:
                raise ValueError(
                    f"{self.grid.layer.kind}: {name} have shape {found.shape}; it must be {expected.shape}"
                )
            for place in np.ndindex(expected.shape):
                yield self._label(name, place), float(found[place]), float(expected[place])

    def _results(self, values: list[Array], error: float) -> Iterator[tuple[str, Any]]:
        """Calls `downward`; yields its results by name."""
        assert self.definition.downward is not None
        state = float(self.definition.upward(*_arguments(values)))
        results = self.definition.downward(*_arguments(values), state, error)
        if isinstance(self.grid.layer, Loss):  # which returns the errors alone
            results = (results,)
        names = ["errors", *(f"gradient of {p.name.rpartition('.')[2]}" for p in self.grid.parameters)]
        if not isinstance(results, tuple) or len(results) != len(names):
            raise ValueError(
                f"{self.grid.layer.kind}: downward must return the tuple "
                f"({', '.join(names)}{',' if len(names) == 1 else ''}), but returns {results!r}"
            )
        return zip(names, results, strict=True)

    def _label(self, name: str, place: tuple[int, ...]) -> str:
        """Names a number: `errors[2]`; with several inputs, `errors of input 1[2]`."""
        if not place:
            return name
        (k,) = place
        if len(self.n_edges) == 1:
            return f"{name}[{k}]"
        ends = list(accumulate(self.n_edges))
        number = bisect_right(ends, k)
        return f"{name} of input {number}[{k - ends[number] + self.n_edges[number]}]"


def _arguments(values: list[Array]) -> list[Any]:
    """Copies arguments for a function: incoming states of its own, parameters that it cannot change."""
    incoming, *others = values
    return [incoming.copy(), *(_frozen(value) if value.ndim else value.item() for value in others)]


def _frozen(array: Array) -> Array:
    view = array.view()
    view.flags.writeable = False
    return view


def differences(function: Callable[[Array], float], at: Array, *, step: float = 1e-6) -> Array:
    """Computes the gradient of `function` at an array of float64, by central differences, one number at a
    time.
    """
    found = np.empty(at.shape)
    for place in np.ndindex(at.shape):
        moved = at.copy()
        width = step * max(1.0, math.fabs(float(at[place])))
        moved[place] = at[place] + width
        above = function(moved)
        moved[place] = at[place] - width
        found[place] = (above - function(moved)) / (2.0 * width)
    return found
