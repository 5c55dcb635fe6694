"""Blocks of layers that repeat in a long network, so that they are drawn once: "12 times the same".

A block folds where it comes several times in a row with the same kinds, settings and shapes, the same wiring
(each layer uses inputs as far back, and is used as far ahead), the same pieces on the same machines and the
same messages into and inside of every layer. The first is drawn, and stands for all.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

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


class Sketch(NamedTuple):
    """The layers that are drawn, the one that stands for each layer (mostly itself), and the folds."""

    wiring: Wiring
    stands_for: dict[str, str]
    folds: tuple[Fold, ...]


def sketched(owned: Ownership, routes: Sequence[Route]) -> Sketch:
    """Folds the network where it is long enough."""
    graph = owned.graph
    computed = [grid.name for grid in graph.computed]
    stands_for = {grid.name: grid.name for grid in graph.grids}
    folds = []
    for start, period, times in runs(_signatures(owned, routes)) if len(computed) >= FOLDED else ():
        block, stop = tuple(computed[start : start + period]), start + period * times
        stands_for |= {computed[n]: block[(n - start) % period] for n in range(start, stop)}
        folds.append(Fold(block, times, computed[stop - 1]))
    sent = [found.via for found in routes if found.message.buffer.parameter is not None and found.via]
    return Sketch(_wiring(graph, stands_for, set(sent)), stands_for, tuple(folds))


def _wiring(graph: Graph, stands_for: dict[str, str], weights: set[tuple[str, str]]) -> Wiring:
    """Wires the layers that are drawn, and what is given to one of them; `weights` go from layer to layer."""
    drawn = [grid for grid in graph.grids if stands_for[grid.name] == grid.name]
    used = {source for grid in drawn for source in grid.sources}
    kept = [grid for grid in drawn if not grid.is_placeholder or grid.name in used]
    sources = {grid.name: tuple(stands_for[source] for source in grid.sources) for grid in kept}
    for below, above in sorted((stands_for[one], stands_for[other]) for one, other in weights):
        if below != above and below not in sources[above]:
            sources[above] += (below,)
    return Wiring(sources, frozenset(grid.name for grid in kept if grid.is_placeholder))


def _signatures(owned: Ownership, routes: Sequence[Route]) -> list[Hashable]:
    """Returns for each computed layer all that must be the same where it repeats."""
    graph = owned.graph
    order = {grid.name: n for n, grid in enumerate(graph.computed)}
    arriving: dict[str, list[Hashable]] = {name: [] for name in order}
    for found in routes:
        message = found.message
        what = (message.direction, found.start[1:], found.stop[1:], message.rows, message.n_bytes)
        arriving[found.ends[1]].append((found.via is None, *what))
    signatures: list[Hashable] = []
    for n, grid in enumerate(graph.computed):
        back = tuple(n - order[source] if source in order else source for source in grid.sources)
        ahead = tuple(order[consumer] - n for consumer, _ in graph.consumers(grid.name))
        pieces = tuple(replace(piece, layer="") for piece in owned.of(grid.name))
        signatures.append((_settings(grid), back, ahead, pieces, frozenset(arriving[grid.name])))
    return signatures


def _settings(grid: Grid) -> Hashable:
    """Returns the kind, shape and parameters of a layer, and its settings but the name."""
    layer: Any = grid.layer
    settings = [(f.name, repr(getattr(layer, f.name))) for f in fields(layer) if f.name != "name"]
    parameters = tuple((parameter.shape, parameter.shared) for parameter in grid.parameters)
    return layer.kind, grid.shape, parameters, tuple(settings)


def runs(signatures: Sequence[Hashable]) -> list[tuple[int, int, int]]:
    """Finds where blocks repeat: start, length of the block, and how many times it comes.

    The longest runs, from the first layer on; of those that save as much, the one with the shortest block.
    """

    def times(start: int, period: int) -> int:
        n = start
        while n + period < len(signatures) and signatures[n] == signatures[n + period]:
            n += 1
        return 1 + (n - start) // period

    found, n = [], 0
    while n < len(signatures):
        candidates = ((period, times(n, period)) for period in range(1, LONGEST + 1))
        period, count = max(candidates, key=lambda run: (run[0] * (run[1] - 1), -run[0]))
        if period * (count - 1) >= LEAST:
            found.append((n, period, count))
            n += period * count
        else:
            n += 1
    return found
