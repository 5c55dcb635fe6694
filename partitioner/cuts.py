"""Cuts given by hand, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

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


Cuts: TypeAlias = Mapping[str, Pieces | Whole]
"""A cut for some layers, by name."""


def check_cuts(graph: Graph, cuts: Cuts) -> None:
    """Raises ValueError where a cut names no layer."""
    for name in cuts:
        if name not in graph or graph[name].is_given:
            layers = ", ".join(grid.name for grid in graph.computed)
            raise ValueError(f"there is no layer '{name}' to cut in network '{graph.name}'; it has {layers}")


def cut_layer(grid: Grid, cut: Pieces | Whole, *, machines: int) -> tuple[Piece, ...]:
    """The pieces of a layer.

    Raises:
        ValueError: more pieces than rows, a machine that is not there or named twice, sizes that do not add
            up, or a layer that must stay whole.
    """
    if not isinstance(cut, Pieces | Whole):
        raise ValueError(f"the cut of '{grid.name}' is {cut!r}; write for example Pieces(2) or Whole(0)")
    owners = (cut.machine,) if isinstance(cut, Whole) else cut.machines
    owners = tuple(range(owners)) if isinstance(owners, int) else tuple(owners)
    what = f"{grid.layer.kind} '{grid.name}'"
    if not owners:
        raise ValueError(f"{what} is given to no machine; name at least one")
    for owner in owners:
        if not 0 <= owner < machines:
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
    sizes = cut.sizes if isinstance(cut, Pieces) else None
    if sizes is None:
        met = boundaries(dict.fromkeys(range(len(owners)), 1.0), grid.n_rows)
    elif len(sizes) != len(owners) or min(sizes) < 1 or sum(sizes) != grid.n_rows:
        raise ValueError(
            f"{what} has {grid.n_rows} rows for {len(owners)} machines, but the sizes are {sizes}; "
            f"give each machine at least 1, {grid.n_rows} in all"
        )
    else:
        met = (0, *(sum(sizes[: k + 1]) for k in range(len(sizes))))
    return tuple(Piece(grid.name, met[k], met[k + 1], owner) for k, owner in enumerate(owners))
