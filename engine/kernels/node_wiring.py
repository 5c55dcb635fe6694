"""Who each node of a machine listens to, as flat tables that compiled loops read.

Nodes that stand side by side and listen to the same senders (filters at a place, a fully connected layer)
share one list.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from partita.engine.kernels.kernel import Site
from partita.layers.connectivity import PADDING

Table = npt.NDArray[Any]
_EDGES_AT_ONCE: Final = 1 << 20
"""How many edges are looked up at a time, so that making the tables takes little memory."""


@dataclass(frozen=True)
class Wiring:
    """The incoming edges of the nodes of a machine's rows, in their order.

    Attributes:
        senders: lists of places in the window of the input, or `PADDING`; int32.
        firsts: for each node, where its list begins.
        offsets: for each node, how many edges those before it have; and all.
        least: for each node, the lowest sender; beyond all if it hears nobody.
        most: for each node, the highest sender; -1 if it hears nobody.
        width: the most edges that a node has.
    """

    senders: Table
    firsts: Table
    offsets: Table
    least: Table
    most: Table
    width: int

    @classmethod
    def of(cls, site: Site) -> Wiring:
        """The edges of a site of one input."""
        (source,), (start, stop) = site.sources, site.rows
        fan_in = max(site.grid.layer.connectivity.fan_in(source.shape), 1)
        step = max(1, _EDGES_AT_ONCE // (fan_in * site.grid.nodes_per_row))
        first_sender = site.windows[0][0] * source.nodes_per_row
        parts, listed, before = [], 0, 0
        for row in range(start, stop, step):
            rows = row, min(row + step, stop)
            offsets, indices = site.grid.layer.connectivity.edges(rows, site.grid.shape, source.shape)
            senders = np.where(indices == PADDING, PADDING, indices - first_sender).astype(np.int32)
            part = _Part.of(offsets, senders)
            parts.append((part, listed, before))
            listed, before = listed + len(part.senders), before + int(offsets[-1])
        offsets = np.concatenate([np.zeros(1, np.int64), *(p.offsets[1:] + b for p, _, b in parts)])
        return cls(
            np.concatenate([part.senders for part, _, _ in parts]),
            np.concatenate([part.firsts + first for part, first, _ in parts]),
            offsets,
            np.concatenate([part.least for part, _, _ in parts]),
            np.concatenate([part.most for part, _, _ in parts]),
            int(np.diff(offsets).max(initial=0)),
        )


@dataclass(frozen=True)
class _Part:
    senders: Table
    firsts: Table
    offsets: Table
    least: Table
    most: Table

    @classmethod
    def of(cls, offsets: Table, senders: Table) -> _Part:
        counts = np.diff(offsets)
        if len(counts) and counts[0] and (counts == counts[0]).all():
            lists = senders.reshape(len(counts), counts[0])
            new = np.concatenate([[True], (lists[1:] != lists[:-1]).any(axis=1)])
            which = np.cumsum(new) - 1
            lists = lists[new]
            firsts = which * lists.shape[1]
            beyond = np.iinfo(np.int32).max
            least = np.where(lists == PADDING, beyond, lists).min(axis=1)
            return cls(lists.reshape(-1), firsts, offsets, least[which], lists.max(axis=1)[which])
        return cls(senders, offsets[:-1].astype(np.int64), offsets, *_bounds(offsets, senders))


def _bounds(offsets: Table, senders: Table) -> tuple[Table, Table]:
    beyond = np.iinfo(np.int32).max
    lowest = np.append(np.where(senders == PADDING, beyond, senders), beyond)
    highest = np.append(senders, PADDING)
    empty = offsets[:-1] == offsets[1:]
    least = np.where(empty, beyond, np.minimum.reduceat(lowest, offsets[:-1]))
    most = np.where(empty, PADDING, np.maximum.reduceat(highest, offsets[:-1]))
    return least, most
