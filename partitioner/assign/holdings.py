"""Who has which rows of each layer: pieces, copies and homes, and that each row is somewhere."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, replace
from functools import cached_property

from partita.layers.box import NOTHING, Box, BoxSet
from partita.layers.graph import Graph, Grid
from partita.partitioner.assign.piece import Piece
from partita.partitioner.assign.tiling import are_tiles


@dataclass(frozen=True)
class Holdings:
    """The pieces of every computed layer, in ascending rows; each machine has at most one piece of a layer.

    Each row belongs to one machine, or on purpose to several, where its layer learns nothing of its own: then
    each has a copy, a node by itself that hears the same and feeds the machine that it is on. Machines
    without a copy are fed by the row's home, the first piece that has it.

    A picture may be cut into tiles: then every picture's pieces name their columns, and all sets of rows of a
    picture are boxes. Where no picture is, no piece names any. Such pictures have no copies.
    """

    graph: Graph
    machines: int
    pieces: tuple[Piece, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "pieces", self._with_columns())
        for grid in self.graph.computed:
            pieces = self.of(grid.name)
            owners, boxes = [piece.machine for piece in pieces], [piece.box for piece in pieces]
            if not self._covers(grid, boxes):
                raise ValueError(
                    f"the pieces of '{grid.name}' do not cover its {grid.n_rows} rows once: {pieces}"
                )
            if any(piece.start >= piece.stop or not 0 <= piece.machine < self.machines for piece in pieces):
                raise ValueError(f"a piece of '{grid.name}' is empty or on no machine: {pieces}")
            if len(set(owners)) < len(owners):
                raise ValueError(
                    f"a machine has two pieces of '{grid.name}'; give each machine one: {owners}"
                )
            if any(piece.inputs is not None for piece in pieces):
                self._check_inputs(grid)

    def _with_columns(self) -> tuple[Piece, ...]:
        """The pieces with their columns, where some layer's columns are cut, and otherwise without."""
        graph, pieces = self.graph, self.pieces
        pictures = {grid.name for grid in graph.grids if grid.is_picture}
        if not any(self._is_narrow(piece) for piece in pieces if piece.layer in pictures):
            return tuple(replace(p, columns=None) if p.columns else p for p in pieces)
        return tuple(
            replace(p, columns=(0, graph[p.layer].shape[1])) if p.layer in pictures and not p.columns else p
            for p in pieces
        )

    def _is_narrow(self, piece: Piece) -> bool:
        return piece.columns not in (None, (0, self.graph[piece.layer].shape[1]))

    @cached_property
    def narrow(self) -> frozenset[str]:
        """The layers whose columns are cut."""
        return frozenset(p.layer for p in self.pieces if p.columns is not None and self._is_narrow(p))

    def is_boxed(self, layer: str) -> bool:
        """Whether sets of the layer's rows are of boxes."""
        return bool(self.narrow) and self.graph[layer].is_picture

    def _covers(self, grid: Grid, boxes: list[Box]) -> bool:
        """Whether these boxes are all rows of a layer, each once, or more often where that may be."""
        if self.is_boxed(grid.name):
            if grid.whole.size < sum(box.size for box in boxes):
                raise ValueError(
                    f"several machines have rows of the picture '{grid.name}', while "
                    f"'{min(self.narrow)}' is cut into tiles, which knows no copies; give each row of "
                    f"'{grid.name}' to one machine, or cut '{min(self.narrow)}' by rows"
                )
            return are_tiles(boxes, grid.whole)
        repeated = sum(box.size for box in boxes) > grid.n_rows
        is_all = BoxSet.union(boxes) == BoxSet.of_rows((0, grid.n_rows))
        return is_all and (not repeated or self._may_repeat(grid, boxes))

    def _may_repeat(self, grid: Grid, boxes: list[Box]) -> bool:
        """Whether rows may belong to several machines; cut by inputs, all rows to all of them."""
        if self.by_inputs(grid.name):
            return all(box == Box.whole((grid.n_rows,)) for box in boxes)
        return grid.repeatable

    def _check_inputs(self, grid: Grid) -> None:
        """Each row of the input is multiplied by one machine."""
        pieces, source = self.of(grid.name), grid.sources[0]
        n_rows = self.graph[source].n_rows
        if self.is_boxed(grid.name) or source in self.narrow:
            raise ValueError(
                f"'{grid.name}' is cut by its inputs, which goes with no tiles, but '{min(self.narrow)}' is "
                f"cut into tiles; cut '{grid.name}' by rows"
            )
        found = sorted(piece.inputs or (0, 0) for piece in pieces)
        met = [0, *(end for run in found for end in run), n_rows]
        if (
            not grid.layer.splits_sum
            or any(a != b for a, b in zip(met[::2], met[1::2], strict=True))
            or any(a >= b for a, b in found)
        ):
            raise ValueError(
                f"the pieces of '{grid.name}' do not cover the {n_rows} rows of its input once: {pieces}"
            )

    def of(self, layer: str) -> tuple[Piece, ...]:
        """The pieces of a layer, in ascending rows."""
        return self._of.get(layer, ())

    @cached_property
    def _of(self) -> dict[str, tuple[Piece, ...]]:
        found: dict[str, list[Piece]] = {}
        for piece in sorted(self.pieces, key=lambda piece: (piece.layer, piece.box, piece.machine)):
            found.setdefault(piece.layer, []).append(piece)
        return {layer: tuple(pieces) for layer, pieces in found.items()}

    def rows(self, layer: str, machine: int) -> BoxSet:
        """The rows of a layer that a machine owns."""
        return self._rows.get((layer, machine), NOTHING)

    @cached_property
    def _rows(self) -> dict[tuple[str, int], BoxSet]:
        return {(piece.layer, piece.machine): piece.rows for piece in self.pieces}

    def of_machine(self, machine: int) -> tuple[Piece, ...]:
        """The pieces of a machine, in the order of the network's layers."""
        return self._of_machine.get(machine, ())

    @cached_property
    def _of_machine(self) -> dict[int, tuple[Piece, ...]]:
        found: dict[int, list[Piece]] = {}
        for grid in self.graph.computed:
            for piece in self.of(grid.name):
                found.setdefault(piece.machine, []).append(piece)
        return {machine: tuple(pieces) for machine, pieces in found.items()}

    def by_inputs(self, layer: str) -> bool:
        """Whether a layer is cut by its inputs: each machine has all rows of the weights for some inputs."""
        pieces = self.of(layer)
        return bool(pieces) and pieces[0].inputs is not None

    def inputs(self, layer: str, machine: int) -> tuple[int, int] | None:
        """The rows of its input whose weights a machine has, of a layer that is cut by its inputs."""
        if not self.by_inputs(layer):
            return None
        return next((piece.inputs for piece in self.of(layer) if piece.machine == machine), None)

    @cached_property
    def copied(self) -> frozenset[str]:
        """The layers of which several machines have the same rows."""
        return frozenset(
            grid.name
            for grid in self.graph.computed
            if len(self.of(grid.name)) > 1
            and sum(piece.box.size for piece in self.of(grid.name)) > self._extent(grid)
        )

    def _extent(self, grid: Grid) -> int:
        return grid.whole.size if self.is_boxed(grid.name) else grid.n_rows

    def home(self, layer: str, machine: int) -> BoxSet:
        """The rows of a layer that a machine owns, and none before it: it feeds them to those without."""
        if layer in self.copied:
            return self._homes.get((layer, machine), NOTHING)
        return self.rows(layer, machine)

    @cached_property
    def _homes(self) -> dict[tuple[str, int], BoxSet]:
        """Of the layers of which there are copies."""
        found: dict[tuple[str, int], BoxSet] = {}
        for layer in self.copied:
            taken = NOTHING
            for piece in self.of(layer):
                found[layer, piece.machine] = piece.rows - taken
                taken |= piece.rows
        return found

    def fed(self, layer: str, feeder: int, listener: int) -> BoxSet:
        """The rows of a layer that one machine feeds to another, or to itself, where that listens to them."""
        copies = self.rows(layer, listener)
        if feeder == listener:
            return copies
        home = self.home(layer, feeder)
        return home - copies if layer in self.copied else home

    def feeders(self, layer: str, rows: BoxSet, listener: int) -> list[tuple[Piece, BoxSet]]:
        """The pieces of a layer that feed some of these rows to a machine, and which, in ascending rows."""
        if layer not in self.copied:
            return self.homes(layer, rows)
        found = ((piece, self.fed(layer, piece.machine, listener)) for piece in self.of(layer) if rows)
        shared = ((piece, rows & of_piece) for piece, of_piece in found)
        return [(piece, some) for piece, some in shared if some]

    def homes(self, layer: str, rows: BoxSet) -> list[tuple[Piece, BoxSet]]:
        """The pieces of a layer at which some of these rows are at home, and which, in ascending rows."""
        if not rows:
            return []
        if layer in self.copied:
            every = ((p, rows & self.home(layer, p.machine)) for p in self.of(layer))
            return [(piece, shared) for piece, shared in every if shared]
        pieces, (first, last) = self.of(layer), rows.hull[0]
        start = bisect_right(pieces, first, key=lambda piece: piece.stop)
        stop = bisect_left(pieces, last, key=lambda piece: piece.start)
        found = ((piece, rows & piece.rows) for piece in pieces[start:stop])
        return [(piece, shared) for piece, shared in found if shared]
