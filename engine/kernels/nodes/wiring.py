"""The senders of each node of a machine, and the places of its parameters, as flat tables that loops read.

Adjacent nodes with the same senders (filters at a place, a fully connected layer) share one list.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from partita.engine.kernels.kernel import KernelContext
from partita.layers.box import Shape, Span
from partita.layers.connectivity import PADDING, Connectivity

Table = npt.NDArray[Any]
_EDGES_AT_ONCE: Final = 1 << 20
"""Edges looked up at a time, so that making the tables takes little memory."""
_BEYOND: Final = np.iinfo(np.int32).max


@dataclass(frozen=True)
class Wiring:
    """The nodes of a machine's rows, in their order.

    Attributes:
        senders: lists of places in the windows of the inputs, one behind the other, or `PADDING`; int32.
        firsts: where a node's list begins; int64.
        counts: number of its senders; int32.
        edges: where its numbers begin in a parameter of the edges that nodes do not share; int64.
        least: its lowest sender, beyond all if it has none; int32.
        most: its highest sender, -1 if it has none; int32.
    """

    senders: Table
    firsts: Table
    counts: Table
    edges: Table
    least: Table
    most: Table

    @property
    def width(self) -> int:
        """The most senders of a node."""
        return int(self.counts.max(initial=0))

    @classmethod
    def of(cls, context: KernelContext) -> Wiring:
        """Makes the wiring of a context."""
        grid, (start, stop), shapes = context.grid, context.rows, [one.shape for one in context.sources]
        fan_in = sum(one.fan_in(shape) for one, shape in zip(grid.wirings, shapes, strict=True))
        step = max(1, _EDGES_AT_ONCE // max(fan_in * grid.nodes_per_row, 1))
        parts, n_listed = [], 0
        for row in range(start, stop, step):
            rows = (row, min(row + step, stop))
            counts, senders = edges_of(grid.wirings, rows, grid.shape, shapes, context.windows)
            parts.append(_lists(counts, senders.astype(np.int32), n_listed))
            n_listed += len(parts[-1][0])
        senders, firsts, counts, least, most = map(np.concatenate, zip(*parts, strict=True))
        edges = np.cumsum(counts, dtype=np.int64) - counts
        return cls(senders, firsts, counts.astype(np.int32), edges, least, most)


def edges_of(
    wirings: Sequence[Connectivity],
    rows: Span,
    shape: Shape,
    sources: Sequence[Shape],
    windows: Sequence[Span],
) -> tuple[Table, Table]:
    """Lists the senders of the nodes in some rows, over the windows of all inputs, one behind the other.

    Returns:
        For each node, their number; and all of them, node after node, input after input, or `PADDING`.
    """
    counts, senders, first = [], [], 0
    for wiring, source, (start, stop) in zip(wirings, sources, windows, strict=True):
        offsets, indices = wiring.edges(rows, shape, source)
        per_row = math.prod(source[1:])
        counts.append(np.diff(offsets))
        senders.append(np.where(indices == PADDING, PADDING, indices + (first - start * per_row)))
        first += (stop - start) * per_row
    if len(senders) == 1:
        return counts[0], senders[0]
    nodes = np.concatenate([np.repeat(np.arange(len(one)), one) for one in counts])
    return np.sum(counts, axis=0), np.concatenate(senders)[np.argsort(nodes, kind="stable")]


def _lists(counts: Table, senders: Table, n_before: int) -> tuple[Table, ...]:
    """Makes lists of senders without repetitions; for each node, where its list begins after `n_before`, its
    length, and its bounds.
    """
    ends = np.cumsum(counts, dtype=np.int64)
    if len(counts) and counts[0] and (counts == counts[0]).all():
        lists = senders.reshape(len(counts), counts[0])
        is_new = np.concatenate([[True], (lists[1:] != lists[:-1]).any(axis=1)])
        which, lists = np.cumsum(is_new) - 1, lists[is_new]
        least = np.where(lists == PADDING, _BEYOND, lists).min(axis=1)[which]
        return lists.reshape(-1), n_before + which * lists.shape[1], counts, least, lists.max(axis=1)[which]
    firsts = ends - counts
    lowest = np.append(np.where(senders == PADDING, _BEYOND, senders), _BEYOND)
    highest = np.append(senders, PADDING).astype(np.int32)
    least = np.where(counts == 0, _BEYOND, np.minimum.reduceat(lowest, firsts))
    most = np.where(counts == 0, PADDING, np.maximum.reduceat(highest, firsts))
    return senders, n_before + firsts, counts, least, most
