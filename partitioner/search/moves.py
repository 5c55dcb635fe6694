"""Moves: small changes of a plan, the more promising first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import TypeAlias

from partita.layers.graph import Graph
from partita.layers.losses import Loss
from partita.partitioner.assign.cuts import (
    Cuts,
    InputSplit,
    RowSplit,
    Whole,
    cut_layer,
    following,
    follows_input,
    with_scores,
)
from partita.partitioner.assign.piece import Piece
from partita.partitioner.plan import Plan
from partita.partitioner.search.layouts import Choice

Candidate: TypeAlias = Mapping[str, Choice]
"""A cut for every layer, under consideration."""


def other_layouts(
    plan: Candidate, choices: Mapping[str, Sequence[Choice]], runs: Sequence[Sequence[str]]
) -> Iterator[Candidate]:
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


def shifted(plan: Candidate, layers: Sequence[str]) -> Iterator[Candidate]:
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


def swapped(plan: Candidate, layers: Sequence[str], machines: Sequence[int]) -> Iterator[Candidate]:
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


def with_cuts(plan: Plan, cuts: Cuts) -> Plan:
    """The plan with other cuts of some layers; a loss that lies where its scores do follows them."""
    graph, owned = plan.graph, plan.ownership
    pieces: dict[str, tuple[Piece, ...]] = {}
    for grid in (grid for grid in graph.computed if grid.name in cuts):
        cut, below = cuts[grid.name], grid.sources[0]
        found = cut_layer(grid, cut, machines=len(plan.cluster), source=graph[below])
        if follows_input(cut):
            found = following(found, pieces.get(below, owned.of(below)))
        pieces[grid.name] = found
    for loss in graph.computed:
        scores = loss.sources[0]
        if isinstance(loss.layer, Loss) and scores in pieces and loss.name not in pieces:
            evaluators = {piece.machine for piece in with_scores(loss, owned.of(scores))}
            together = evaluators == {piece.machine for piece in owned.of(loss.name)}
            if together and (loss.layer.splits_scores or len(pieces[scores]) == 1):
                pieces[loss.name] = with_scores(loss, pieces[scores])
    others = (piece for piece in plan.pieces if piece.layer not in pieces)
    changed = (piece for some in pieces.values() for piece in some)
    return replace(plan, ownership=replace(owned, pieces=(*others, *changed)))
