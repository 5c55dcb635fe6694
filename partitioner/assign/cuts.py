"""Cuts: how each layer is divided over machines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from itertools import accumulate, pairwise, product
from typing import Any, TypeAlias

from partita.layers.checks import check_extents, check_shape, check_whole
from partita.layers.graph import Graph, Grid
from partita.partitioner.assign.piece import Piece, boundaries


@dataclass(frozen=True)
class RowSplit:
    """A vertical cut: a layer's rows over several machines, in this order.

    Args:
        machines: numbers of machines; a single number n stands for machines 0 to n - 1.
        sizes: rows of each piece; as equal as possible if not given.
        halo: rows of the neighbouring pieces that each machine also computes, on each side, so that they need
            not be sent. Not for a layer whose nodes have weights of their own.
    """

    machines: int | tuple[int, ...]
    sizes: tuple[int, ...] | None = None
    halo: int = 0


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
        across: number of tiles `(down, across)`.
        sizes: `(rows, columns)`: rows of each row of tiles, columns of each column; as equal as possible if
            not given.
    """

    machines: int | tuple[int, ...]
    across: tuple[int, int]
    sizes: tuple[tuple[int, ...], tuple[int, ...]] | None = None


@dataclass(frozen=True)
class Replicated:
    """A whole layer on each of several machines, which is cheaper than sending its activations.

    Not for a layer whose nodes have weights of their own.

    Args:
        machines: as for `RowSplit`.
    """

    machines: int | tuple[int, ...]


@dataclass(frozen=True)
class InputSplit:
    """A dense layer over several machines, each with the weights of some of its inputs.

    Each machine multiplies its part of the input. Forward, the machines send one another sums over these
    inputs; backward, gradients of the layer's nodes. A layer cut by its rows followed by a `replicated` one
    cut by its inputs need one exchange forward and one backward.

    Args:
        machines: as for `RowSplit`.
        sizes: rows of the input for each machine; if not given, the pieces of the input if it is cut over the
            same machines in the same order, otherwise as equal as possible.
        replicated: every machine has the activations of all nodes. Otherwise the layer's rows are cut over
            the same machines as equally as possible.
    """

    machines: int | tuple[int, ...]
    sizes: tuple[int, ...] | None = None
    replicated: bool = False


Cut: TypeAlias = RowSplit | Whole | Tiles | Replicated | InputSplit
"""The cut of a layer."""
Cuts: TypeAlias = Mapping[str, Cut]
"""A cut for some layers, by name."""


def check_cuts(graph: Graph, cuts: object) -> None:
    """Raises ValueError if the cuts are no mapping, or one names no layer."""
    if not isinstance(cuts, Mapping):
        layer = graph.computed[0].name
        raise ValueError(f"the cuts are {cuts!r}; name their layers, for example {{'{layer}': RowSplit(2)}}")
    for name in cuts:
        if name not in graph or graph[name].is_placeholder:
            layers = ", ".join(grid.name for grid in graph.computed)
            raise ValueError(f"there is no layer '{name}' to cut in network '{graph.name}'; it has {layers}")


def plain(cut: Any) -> Any:
    """The same cut with tuples in the place of lists, so that it is hashable."""
    if not isinstance(cut, Cut):
        return cut
    return replace(cut, **{setting.name: _tuples(getattr(cut, setting.name)) for setting in fields(cut)})


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list | tuple) else value


def cut_layer(grid: Grid, cut: Cut, *, machines: int, source: Grid | None = None) -> tuple[Piece, ...]:
    """Returns the pieces of a layer; `source` is its first input, for a cut by inputs.

    Raises:
        ValueError: more pieces than rows, a machine that is not there or named twice, sizes that do not add
            up, numbers that are not whole, a layer that must stay whole, or one that cannot be cut so.
    """
    if not isinstance(cut, Cut):
        raise ValueError(f"the cut of '{grid.name}' is {cut!r}; write for example RowSplit(2) or Whole(0)")
    what = f"{grid.layer.kind} '{grid.name}'"
    owners = _owners(cut, what)
    for owner in owners:
        if owner >= machines:
            raise ValueError(
                f"{what} is put on machine {owner}, but the cluster's machines are 0 to {machines - 1}"
            )
    if len(set(owners)) < len(owners):
        raise ValueError(f"{what} names a machine twice, {owners}; give each machine one piece")
    if isinstance(cut, Replicated):
        _check_replicable(grid, owners, what)
        return tuple(Piece(grid.name, 0, grid.n_rows, owner) for owner in owners)
    if len(owners) > 1 and not grid.layer.cuttable:
        raise ValueError(f"{what} cannot be cut; put it on one machine, for example Whole({owners[0]})")
    if isinstance(cut, Tiles):
        return _tiles(grid, cut, owners, what)
    if isinstance(cut, InputSplit):
        assert source is not None, f"{what} is cut by its inputs, but these are not known"
        return _split_inputs(grid, source, cut, owners, what)
    unit = "node" if len(grid.shape) == 1 else "row"
    rows = RowSplit(owners) if isinstance(cut, Whole) else cut
    ends = _boundaries(rows.sizes, len(owners), grid.n_rows, what, unit)
    halo = check_whole(rows.halo, f"{what}: the halo is", least=0)
    if halo:
        _check_replicable(grid, owners, what)
    return tuple(
        Piece(grid.name, max(ends[k] - halo, 0), min(ends[k + 1] + halo, grid.n_rows), owner)
        for k, owner in enumerate(owners)
    )


def _check_replicable(grid: Grid, owners: tuple[int, ...], what: str) -> None:
    if grid.replicable or len(owners) < 2:
        return
    instead = "InputSplit(2, replicated=True)" if grid.layer.splits_sum else "RowSplit(2)"
    raise ValueError(
        f"{what} cannot be replicated: its nodes have weights of their own, and those of each replica would "
        f"learn something else; cut it without, for example {instead}"
    )


def _split_inputs(
    grid: Grid, source: Grid, cut: InputSplit, owners: tuple[int, ...], what: str
) -> tuple[Piece, ...]:
    """Pieces with rows of the input for each machine."""
    if not grid.layer.splits_sum:
        raise ValueError(
            f"{what} cannot be cut by its inputs, because its nodes take no sum over all of them; cut it by "
            "rows, for example RowSplit(2)"
        )
    if len(owners) == 1:
        return (Piece(grid.name, 0, grid.n_rows, owners[0]),)
    inputs = _boundaries(cut.sizes, len(owners), source.n_rows, f"the input '{source.name}' of {what}", "row")
    ends = () if cut.replicated else _boundaries(None, len(owners), grid.n_rows, what, "row")
    rows = [(0, grid.n_rows)] * len(owners) if cut.replicated else list(pairwise(ends))
    return tuple(
        Piece(grid.name, *rows[k], machine=owner, inputs=(inputs[k], inputs[k + 1]))
        for k, owner in enumerate(owners)
    )


def follows_input(cut: Cut | None) -> bool:
    """Returns whether the sizes of a cut follow the pieces of the layer's input."""
    return isinstance(cut, InputSplit) and cut.sizes is None


def following(pieces: tuple[Piece, ...], below: tuple[Piece, ...]) -> tuple[Piece, ...]:
    """The pieces of a layer cut by its inputs, along the pieces `below` of its input if these fit."""
    if len(pieces) == 1:
        return pieces
    ordered = sorted(pieces, key=lambda piece: piece.inputs or (0, 0))
    spans = sorted((piece.start, piece.stop) for piece in below)
    apart = all(a[1] == b[0] for a, b in pairwise(spans))
    if not apart or [p.machine for p in sorted(below)] != [p.machine for p in ordered]:
        return pieces
    return tuple(replace(piece, inputs=span) for piece, span in zip(ordered, spans, strict=True))


def with_scores(loss: Grid, scores: tuple[Piece, ...]) -> tuple[Piece, ...]:
    """A loss on every machine that is the primary owner of some scores."""
    if any(piece.columns is not None for piece in scores):  # tiles have no replicas
        return tuple(Piece(loss.name, 0, 1, piece.machine) for piece in sorted(scores))
    found, taken = [], 0
    for piece in sorted(scores):
        if piece.stop > taken:
            found.append(Piece(loss.name, 0, 1, piece.machine))
            taken = piece.stop
    return tuple(found)


def _tiles(grid: Grid, cut: Tiles, owners: tuple[int, ...], what: str) -> tuple[Piece, ...]:
    across = check_extents(cut.across, f"{what}: the number of tiles (down, across) is")
    if not isinstance(across, tuple) or len(across) != 2 or across[0] * across[1] != len(owners):
        raise ValueError(
            f"{what} is cut into {cut.across} tiles for {len(owners)} machines; "
            f"write the tiles down and across, for example ({len(owners)}, 1)"
        )
    why = grid.tiling_rejection()
    if why is not None:
        raise ValueError(f"{what} cannot be cut into tiles: it {why}; cut its rows, with RowSplit")
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
    down = _boundaries(rows, across[0], grid.shape[0], what, "row", of="tile")
    right = _boundaries(columns, across[1], grid.shape[1], what, "column", of="tile")
    places = product(pairwise(down), pairwise(right))
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


def _boundaries(
    sizes: object, n_pieces: int, extent: int, what: str, unit: str, *, of: str = "machine"
) -> tuple[int, ...]:
    """Boundaries along an axis: by the sizes, or as even as possible."""
    if n_pieces > extent:
        raise ValueError(
            f"{what} has {extent} {unit}s and cannot be cut into {n_pieces} pieces; cut it into at most "
            f"{extent}, or leave it whole"
        )
    if sizes is None:
        return boundaries(dict.fromkeys(range(n_pieces), 1.0), extent)
    axis = f"{unit}s" if of == "tile" else "rows"
    found = f"{what} has {extent} {axis} for {n_pieces} {of}s, but the sizes are"
    extents = check_shape(sizes, found)
    if len(extents) != n_pieces or sum(extents) != extent:
        raise ValueError(f"{found} {sizes}; give each {of} at least 1, {extent} in all")
    return (0, *accumulate(extents))
