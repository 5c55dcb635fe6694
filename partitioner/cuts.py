"""Cuts given by hand, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from itertools import accumulate, pairwise, product
from typing import Any, TypeAlias

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


@dataclass(frozen=True)
class Tiles:
    """A cut of a picture into a grid of tiles: down its rows and across its columns.

    Args:
        machines: numbers of machines, row of tiles after row of tiles; a single number n stands for machines
            0 to n - 1.
        across: how many tiles `(down, across)`.
        sizes: `(rows, columns)`: rows of each row of tiles, columns of each column; as equal as can be if not
            given.
    """

    machines: int | tuple[int, ...]
    across: tuple[int, int]
    sizes: tuple[tuple[int, ...], tuple[int, ...]] | None = None


Cut: TypeAlias = Pieces | Whole | Tiles
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


def plain(cut: Any) -> Any:
    """The same cut with tuples where it has lists, so that it can be looked up."""
    if not isinstance(cut, Cut):
        return cut
    return replace(cut, **{setting.name: _tuples(getattr(cut, setting.name)) for setting in fields(cut)})


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list | tuple) else value


def cut_layer(grid: Grid, cut: Cut, *, machines: int) -> tuple[Piece, ...]:
    """The pieces of a layer.

    Raises:
        ValueError: more pieces than rows, a machine that is not there or named twice, sizes that do not add
            up, numbers that are not whole, or a layer that must stay whole, or cannot be cut into tiles.
    """
    if not isinstance(cut, Pieces | Whole | Tiles):
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
    if isinstance(cut, Tiles):
        return _tiles(grid, cut, owners, what)
    if len(owners) > grid.n_rows:
        raise ValueError(
            f"{what} has {grid.n_rows} {'node' if len(grid.shape) == 1 else 'row'}s and cannot be cut into "
            f"{len(owners)} pieces; cut it into at most {grid.n_rows}, or leave it whole"
        )
    met = _met(None if isinstance(cut, Whole) else cut.sizes, len(owners), grid.n_rows, what)
    return tuple(Piece(grid.name, met[k], met[k + 1], owner) for k, owner in enumerate(owners))


def _tiles(grid: Grid, cut: Tiles, owners: tuple[int, ...], what: str) -> tuple[Piece, ...]:
    """Row after row of tiles."""
    across = check_extents(cut.across, f"{what}: the number of tiles (down, across) is")
    if not isinstance(across, tuple) or len(across) != 2 or across[0] * across[1] != len(owners):
        raise ValueError(
            f"{what} is cut into {cut.across} tiles for {len(owners)} machines; "
            f"write the tiles down and across, for example ({len(owners)}, 1)"
        )
    why = grid.why_no_tiles()
    if why is not None:
        raise ValueError(f"{what} cannot be cut into tiles: it {why}; cut its rows, with Pieces")
    if any(tiles > extent for tiles, extent in zip(across, grid.shape, strict=False)):
        raise ValueError(
            f"{what} has {grid.shape[0]} rows and {grid.shape[1]} columns and cannot be cut into "
            f"{across[0]} by {across[1]} tiles; cut it into fewer"
        )
    given: object = cut.sizes
    axes = given if isinstance(given, list | tuple) else ()
    if given is not None and not (len(axes) == 2 and all(isinstance(axis, list | tuple) for axis in axes)):
        raise ValueError(f"{what}: the sizes of its tiles are {cut.sizes!r}; write (rows, columns)")
    rows, columns = (None, None) if cut.sizes is None else cut.sizes
    down = _met(rows, across[0], grid.shape[0], what, "rows")
    places = product(pairwise(down), pairwise(_met(columns, across[1], grid.shape[1], what, "columns")))
    return tuple(
        Piece(grid.name, *rows, owner, columns) for (rows, columns), owner in zip(places, owners, strict=True)
    )


def _owners(cut: Cut, what: str) -> tuple[int, ...]:
    if isinstance(cut, Whole):
        return (check_whole(cut.machine, f"{what} is put on machine", least=0),)
    if isinstance(cut.machines, list | tuple):
        owners = check_extents(cut.machines, f"{what}: the machines are", least=0)
    else:
        owners = check_extents(cut.machines, f"{what}: the number of machines is")
    return owners if isinstance(owners, tuple) else tuple(range(owners))


def _met(sizes: object, n_pieces: int, extent: int, what: str, axis: str = "") -> tuple[int, ...]:
    """The boundaries along an axis: where the sizes put them, or as even as can be."""
    if sizes is None:
        return boundaries(dict.fromkeys(range(n_pieces), 1.0), extent)
    return _boundaries_of(sizes, n_pieces, extent, what, axis)


def _boundaries_of(sizes: object, n_owners: int, n_rows: int, what: str, axis: str) -> tuple[int, ...]:
    found = f"{what} has {n_rows} rows for {n_owners} machines, but the sizes are"
    if axis:
        found = f"{what} has {n_rows} {axis} for {n_owners} tiles, but the sizes are"
    extents = check_shape(sizes, found)
    if len(extents) != n_owners or sum(extents) != n_rows:
        raise ValueError(
            f"{found} {sizes}; give each {'tile' if axis else 'machine'} at least 1, {n_rows} in all"
        )
    return (0, *accumulate(extents))
