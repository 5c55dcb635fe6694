"""Cuts given by hand, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeAlias

from partita.layers.checks import check_extents, check_shape, check_whole
from partita.layers.graph import Graph, Grid
from partita.partitioner.ownership import Piece, boundaries


@dataclass(frozen=True)
class Pieces:
    """A vertical cut: a layer's rows over several machines, in this order.

    Args:
        machines: numbers of machines; a single number n stands for machines 0 to n - 1.
        sizes: rows of each piece; as equal as can be if not given.
    """

    machines: int | tuple[int, ...]
    sizes: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Whole:
    """A layer on one machine. Layers on different machines make a horizontal cut."""

    machine: int


Cut: TypeAlias = Pieces | Whole
"""How a layer is cut."""
Cuts: TypeAlias = Mapping[str, Cut]
"""A cut for some layers, by name."""


def check_cuts(graph: Graph, cuts: object) -> None:
    """Raises ValueError where the cuts are no mapping, or one names no layer."""
    if not isinstance(cuts, Mapping):
        layer = graph.computed[0].name
        raise ValueError(f"the cuts are {cuts!r}; name their layers, for example {{'{layer}': Pieces(2)}}")
    for name in cuts:
        if name not in graph or graph[name].is_given:
            layers = ", ".join(grid.name for grid in graph.computed)
            raise ValueError(f"there is no layer '{name}' to cut in network '{graph.name}'; it has {layers}")


def cut_layer(grid: Grid, cut: Cut, *, machines: int) -> tuple[Piece, ...]:
    """The pieces of a layer.

    Raises:
        ValueError: more pieces than rows, a machine that is not there or named twice, sizes that do not add
            up, numbers that are not whole, or a layer that must stay whole.
    """
    if not isinstance(cut, Pieces | Whole):
        raise ValueError(f"the cut of '{grid.name}' is {cut!r}; write for example Pieces(2) or Whole(0)")
    what = f"{grid.layer.kind} '{grid.name}'"
    owners = _owners(cut, what)
    for owner in owners:
        if owner >= machines:
            raise ValueError(
                f"{what} is put on machine {owner}, but the cluster's machines are 0 to {machines - 1}"
            )
    if len(set(owners)) < len(owners):
        raise ValueError(f"{what} names a machine twice, {owners}; give each machine one piece")
    if len(owners) > 1 and not grid.layer.cuttable:
        raise ValueError(f"{what} cannot be cut; put it on one machine, for example Whole({owners[0]})")
    if len(owners) > grid.n_rows:
        raise ValueError(
            f"{what} has {grid.n_rows} {'node' if len(grid.shape) == 1 else 'row'}s and cannot be cut into "
            f"{len(owners)} pieces; cut it into at most {grid.n_rows}, or leave it whole"
        )
    if isinstance(cut, Whole) or cut.sizes is None:
        met = boundaries(dict.fromkeys(range(len(owners)), 1.0), grid.n_rows)
    else:
        met = _boundaries_of(cut.sizes, len(owners), grid.n_rows, what)
    return tuple(Piece(grid.name, met[k], met[k + 1], owner) for k, owner in enumerate(owners))


def _owners(cut: Cut, what: str) -> tuple[int, ...]:
    if isinstance(cut, Whole):
        return (check_whole(cut.machine, f"{what} is put on machine", least=0),)
    if isinstance(cut.machines, list | tuple):
        owners = check_extents(cut.machines, f"{what}: the machines are", least=0)
    else:
        owners = check_extents(cut.machines, f"{what}: the number of machines is")
    return owners if isinstance(owners, tuple) else tuple(range(owners))


def _boundaries_of(sizes: object, n_owners: int, n_rows: int, what: str) -> tuple[int, ...]:
    found = f"{what} has {n_rows} rows for {n_owners} machines, but the sizes are"
    extents = check_shape(sizes, found)
    if len(extents) != n_owners or sum(extents) != n_rows:
        raise ValueError(f"{found} {sizes}; give each machine at least 1, {n_rows} in all")
    return (0, *accumulate(extents))
