"""Moves: small changes of a plan, the more promising first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations

from partita.layers.graph import Graph
from partita.partitioner.assign.cuts import InputSplit, RowSplit, Whole
from partita.partitioner.search.layouts import Choice

Plan = Mapping[str, Choice]


def other_layouts(
    plan: Plan, choices: Mapping[str, Sequence[Choice]], runs: Sequence[Sequence[str]]
) -> Iterator[Plan]:
    """Gives a run of layers other layouts: the n-th choice of each; a single layer, any choice of its own."""
    for run in runs:
        for n in range(max(len(choices[layer]) for layer in run)):
            changed = {layer: choices[layer][n] for layer in run if n < len(choices[layer])}
            if any(plan.get(layer) != cut for layer, cut in changed.items()):
                yield {**plan, **changed}


def runs_of(graph: Graph, layers: Sequence[str], length: int) -> list[list[str]]:
    """Lists runs of consecutive layers of a length."""
    order = [grid.name for grid in graph.computed if grid.name in layers]
    return [order[start : start + length] for start in range(len(order) - length + 1)]


def shifted(plan: Plan, layers: Sequence[str]) -> Iterator[Plan]:
    """Moves a boundary between two pieces of a layer, by an eighth of the smaller piece or by one row."""
    for layer in layers:
        cut = plan.get(layer)
        if not isinstance(cut, RowSplit | InputSplit) or cut.sizes is None:
            continue
        for n in range(len(cut.sizes) - 1):
            smaller = min(cut.sizes[n], cut.sizes[n + 1])
            for step in dict.fromkeys((max(smaller // 8, 1), -max(smaller // 8, 1), 1, -1)):
                sizes = list(cut.sizes)
                sizes[n] += step
                sizes[n + 1] -= step
                if min(sizes) > 0:
                    yield {**plan, layer: replace(cut, sizes=tuple(sizes))}


def swapped(plan: Plan, layers: Sequence[str], machines: Sequence[int]) -> Iterator[Plan]:
    """Exchanges two machines, in one layer and in all; sizes go with the machine or stay in place."""
    for a, b in combinations(machines, 2):
        renamed = {layer: _renamed(plan.get(layer), {a: b, b: a}) for layer in layers}
        carried = {layer: _carried(renamed[layer], a, b) for layer in layers}
        yield {**plan, **renamed}
        if carried != renamed:
            yield {**plan, **carried}
        for layer in layers:
            for cut in dict.fromkeys((renamed[layer], carried[layer])):
                if cut != plan.get(layer):
                    yield {**plan, layer: cut}


def _renamed(cut: Choice, names: Mapping[int, int]) -> Choice:
    if isinstance(cut, Whole):
        return Whole(names.get(cut.machine, cut.machine))
    if cut is not None and isinstance(cut.machines, tuple):
        return replace(cut, machines=tuple(names.get(m, m) for m in cut.machines))
    return cut


def _carried(cut: Choice, a: int, b: int) -> Choice:
    """Exchanges two machines in a cut, each with the size it had before."""
    if not isinstance(cut, RowSplit | InputSplit) or not isinstance(cut.machines, tuple) or cut.sizes is None:
        return cut
    had = dict(zip(cut.machines, cut.sizes, strict=True))
    had = {**had, **{new: had[old] for new, old in ((a, b), (b, a)) if old in had and new in had}}
    return replace(cut, sizes=tuple(had[m] for m in cut.machines))
