"""The senders of each node of a machine, and the places of its parameters, as flat tables that loops read.

Adjacent nodes with the same senders (filters at a place, a fully connected layer) share one list.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from partita.engine.kernels.kernel import KernelContext
from partita.layers.connectivity import PADDING

Table = npt.NDArray[Any]
_EDGES_AT_ONCE: Final = 1 << 20
"""Edges looked up at a time, so that making the tables takes little memory."""
_BEYOND: Final = np.iinfo(np.int32).max


@dataclass(frozen=True)
class Wiring:
    """The nodes of a machine's rows, in their order.

    Attributes:
        senders: lists of places in the window of the input, or `PADDING`; int32.
        firsts: where a node's list begins; int64.
        counts: number of its senders; int32.
        edges: where its numbers begin in a parameter of the edges; int64.
        owns: place of its number in a parameter of the nodes; int64.
        least: its lowest sender, beyond all if it has none; int32.
        most: its highest sender, -1 if it has none; int32.
    """

    senders: Table
    firsts: Table
    counts: Table
    edges: Table
    owns: Table
    least: Table
    most: Table

    @property
    def width(self) -> int:
        """The most senders of a node."""
        return int(self.counts.max(initial=0))

    @classmethod
    def of(cls, context: KernelContext) -> Wiring:
        """Makes the wiring of a context with one input."""
        (source,), (start, stop), grid = context.sources, context.rows, context.grid
        wiring, n_nodes = grid.connectivity, context.n_rows * grid.nodes_per_row
        step = max(1, _EDGES_AT_ONCE // max(wiring.fan_in(source.shape) * grid.nodes_per_row, 1))
        first_sender = context.windows[0][0] * source.nodes_per_row
        parts, n_listed = [], 0
        for row in range(start, stop, step):
            offsets, indices = wiring.edges((row, min(row + step, stop)), grid.shape, source.shape)
            senders = np.where(indices == PADDING, PADDING, indices - first_sender).astype(np.int32)
            parts.append(_lists(np.diff(offsets), senders, n_listed))
            n_listed += len(parts[-1][0])
        senders, firsts, counts, least, most = map(np.concatenate, zip(*parts, strict=True))
        owns = np.arange(n_nodes)
        edges = np.cumsum(counts, dtype=np.int64) - counts
        if grid.shares_weights:  # each filter has its numbers, which its nodes at all places use
            owns %= grid.shape[-1]
            edges = edges[owns]
        return cls(senders, firsts, counts.astype(np.int32), edges, owns, least, most)


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
