"""What repeats in a long network, so that it is drawn once: "12 times the same".

A block of layers folds where it comes several times in a row with the same kinds, settings and shapes, the
same wiring (each layer listens as far back, and is listened to from as far ahead), the same pieces on the
same machines and the same messages into and inside of every layer. The first is drawn, and stands for all.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from partita.engine.view.layout import Wiring
from partita.engine.view.routes import Route
from partita.layers.graph import Graph, Grid
from partita.partitioner.assign.ownership import Ownership

FOLDED = 30
"""Layers from which on a network is folded."""
LEAST = 3
"""Layers that a fold must save."""
LONGEST = 24
"""Layers of a block."""


@dataclass(frozen=True)
class Fold:
    """A block that is drawn once: its layers, how many times it comes, and the last layer of all."""

    layers: tuple[str, ...]
    times: int
    last: str

    def __str__(self) -> str:
        return f"{self.times} × the same: {self.layers[0]} to {self.last}"


@dataclass(frozen=True)
class Sketch:
    """What is drawn of a network.

    Args:
        wiring: the layers that are drawn, and what is given.
        stands_for: by the name of every layer, the one that is drawn for it; mostly itself.
        folds: the blocks that stand for others.
    """

    wiring: Wiring
    stands_for: dict[str, str]
    folds: tuple[Fold, ...]


def sketched(owned: Ownership, routes: Sequence[Route]) -> Sketch:
    """Folds the network where it is long enough."""
    graph = owned.graph
    computed = [grid.name for grid in graph.computed]
    found = runs(_signatures(owned, routes)) if len(computed) >= FOLDED else []
    stands_for = {grid.name: grid.name for grid in graph.grids}
    folds = []
    for start, period, times in found:
        for n in range(start, start + period * times):
            stands_for[computed[n]] = computed[start + (n - start) % period]
        block = tuple(computed[start : start + period])
        folds.append(Fold(block, times, computed[start + period * times - 1]))
    return Sketch(_wiring(graph, stands_for), stands_for, tuple(folds))


def _wiring(graph: Graph, stands_for: dict[str, str]) -> Wiring:
    """Of the layers that are drawn, and of what is given and has a listener among them."""
    drawn = [grid for grid in graph.grids if stands_for[grid.name] == grid.name]
    heard = {source for grid in drawn for source in grid.sources}
    kept = [grid for grid in drawn if not grid.is_placeholder or grid.name in heard]
    sources = {grid.name: tuple(stands_for[source] for source in grid.sources) for grid in kept}
    return Wiring(sources, frozenset(grid.name for grid in kept if grid.is_placeholder))


def _signatures(owned: Ownership, routes: Sequence[Route]) -> list[Hashable]:
    """For each computed layer all that must be the same where it repeats."""
    graph = owned.graph
    order = {grid.name: n for n, grid in enumerate(graph.computed)}
    arriving: dict[str, list[Hashable]] = {name: [] for name in order}
    for found in routes:
        message = found.message
        what = (message.direction, found.start[1:], found.stop[1:], message.rows, message.n_bytes)
        arriving[found.via[1] if found.via else found.start[0]].append((found.via is None, *what))
    signatures: list[Hashable] = []
    for n, grid in enumerate(graph.computed):
        back = tuple(n - order[source] if source in order else source for source in grid.sources)
        ahead = tuple(order[consumer] - n for consumer, _ in graph.consumers(grid.name))
        pieces = tuple(replace(piece, layer="") for piece in owned.of(grid.name))
        signatures.append((_settings(grid), back, ahead, pieces, frozenset(arriving[grid.name])))
    return signatures


def _settings(grid: Grid) -> Hashable:
    """The kind, shape and parameters of a layer, and its settings but the name."""
    layer: Any = grid.layer
    settings = [(field.name, repr(getattr(layer, field.name))) for field in fields(layer)]
    parameters = tuple((parameter.shape, parameter.shared) for parameter in grid.parameters)
    return layer.kind, grid.shape, parameters, tuple(found for found in settings if found[0] != "name")


def runs(signatures: Sequence[Hashable]) -> list[tuple[int, int, int]]:
    """Where blocks repeat: their start, their length, and how many times they come. The longest runs, from
    the first layer on; of those that save as much, the one with the shortest block.
    """
    found, n = [], 0
    while n < len(signatures):
        best = max(
            ((period, _times(signatures, n, period)) for period in range(1, LONGEST + 1)),
            key=lambda run: (run[0] * (run[1] - 1), -run[0]),
        )
        period, times = best
        if period * (times - 1) >= LEAST:
            found.append((n, period, times))
            n += period * times
        else:
            n += 1
    return found


def _times(signatures: Sequence[Hashable], start: int, period: int) -> int:
    """How often the block that starts here comes in a row."""
    n = start
    while n + period < len(signatures) and signatures[n] == signatures[n + period]:
        n += 1
    return 1 + (n - start) // period
