"""A connectivity given edge by edge: any sparse graph between two grids."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cached_property

import numpy as np

from partita.layers.box import Box, BoxSet, Shape
from partita.layers.checks import check_shape, is_whole
from partita.layers.connectivity import Connectivity, Index
from partita.layers.text import counted


class Edges(Connectivity):
    """Any sparse graph, as pairs `(sender, receiver)` of flat positions in the two grids.

    Args:
        pairs: the edges, each at most once; a node sees its incoming states in the order of the senders.
        nodes: the shape of the layer's grid, or a number for a row of nodes.

    Raises:
        ValueError: an edge is no pair, is given twice, or begins or ends outside a grid.
    """

    def __init__(self, pairs: Iterable[tuple[int, int]], *, nodes: int | Shape) -> None:
        self.nodes = check_shape(nodes, "the number of nodes that Edges lead to is")
        ordered = sorted(_receiver_and_sender(pair) for pair in pairs)
        table = np.array(ordered, dtype=np.int64).reshape(-1, 2)
        n_nodes = math.prod(self.nodes)
        if len(set(ordered)) != len(ordered):
            raise ValueError("an edge is given twice; name each pair (sender, receiver) once")
        for receiver in table[[0, -1], 0] if ordered else ():
            if not 0 <= receiver < n_nodes:
                raise ValueError(f"an edge leads to node {receiver}; receivers are 0 to {n_nodes - 1}")
        if table[:, 1].min(initial=0) < 0:
            raise ValueError(f"an edge starts at node {table[:, 1].min()}; senders are counted from 0")
        self._senders = table[:, 1]
        self._offsets = np.searchsorted(table[:, 0], np.arange(n_nodes + 1))

    def shape(self, source: Shape, nodes: Shape | None) -> Shape:
        """Returns the shape of `nodes`.

        Raises:
            ValueError: a number of nodes is given twice, or an edge starts outside the input.
        """
        if nodes is not None:
            raise ValueError("the edges already say how many nodes the layer has; leave the number out")
        size = math.prod(source)
        if len(self._senders) and int(self._senders.max()) >= size:
            raise ValueError(
                f"an edge starts at node {self._senders.max()}, but the input has {counted(size, 'node')}"
            )
        return self.nodes

    def sources(self, region: Box, source: Shape) -> tuple[Box, ...]:
        """The rows of the input from which an edge leads into the region's rows."""
        if not region.size:
            return ()
        senders = self.edges(region.rows, self.nodes, source)[1]
        rows = map(int, np.unique(senders // math.prod(source[1:])))
        touched = BoxSet.of_rows(*((row, row + 1) for row in rows))
        return tuple(box.over(source) for box in touched)

    def edges(self, rows: tuple[int, int], shape: Shape, source: Shape) -> tuple[Index, Index]:
        """The edges of each node, by sender."""
        offsets = self._offsets[rows[0] * self._stride : rows[1] * self._stride + 1]
        return offsets - offsets[0], self._senders[offsets[0] : offsets[-1]]

    def fan_in(self, source: Shape) -> int:
        """Largest number of edges into one node."""
        return int(np.diff(self._offsets).max(initial=0))

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """The edges (sender, receiver), by receiver, then by sender."""
        receivers = np.repeat(np.arange(len(self._offsets) - 1), np.diff(self._offsets))
        return list(zip(self._senders.tolist(), receivers.tolist(), strict=True))

    @property
    def row_offsets(self) -> tuple[int, ...]:
        """Number of edges before each row of the layer, and of all: positions to cut parameters of edges."""
        return tuple(int(offset) for offset in self._offsets[:: self._stride])

    @cached_property
    def _stride(self) -> int:
        return math.prod(self.nodes[1:])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Edges) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    @cached_property
    def _identity(self) -> tuple[Shape, bytes, bytes]:
        return self.nodes, self._offsets.tobytes(), self._senders.tobytes()

    def __repr__(self) -> str:
        return f"Edges({counted(len(self._senders), 'edge')}, nodes={self.nodes})"


def _receiver_and_sender(pair: object) -> tuple[int, int]:
    ends = tuple(pair) if isinstance(pair, tuple | list | np.ndarray) else ()
    if len(ends) != 2 or not all(map(is_whole, ends)):
        raise ValueError(f"an edge is {pair!r}; write a pair (sender, receiver) of whole numbers")
    return int(ends[1]), int(ends[0])
