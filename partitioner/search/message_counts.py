"""Messages between the layouts of a layer and of its consumers: counted, not listed.

An activation goes once to each machine that needs it, whatever the number of consumers there (so
communication is the hypergraph connectivity minus one); the gradients of each consumer come back. A search
asks this for thousands of machines, so messages are counted for each machine, not listed by pairs. Needed
rows count as one run, from the first to the last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from partita.layers.box import NOTHING, Box
from partita.partitioner.assign.piece import Piece

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Runs:
    """Rows `[start, stop)` of each of some machines; of tiles also columns, as shares of the width."""

    machines: npt.NDArray[np.int64]
    starts: Numbers
    stops: Numbers
    columns: Numbers | None = None
    """`[left or right, machine]`."""
    copies: Numbers | None = None
    """`[start or stop, machine of the cluster]`: all rows of each machine, if several have the same."""

    @classmethod
    def of(cls, boxes: Mapping[int, Box], *, width: int = 1, copies: Numbers | None = None) -> Runs:
        """Takes the rows of a box for each machine, in a picture of this width; empty boxes are left out."""
        kept = {m: box for m, box in boxes.items() if box[0][0] < box[0][1]}
        machines = np.array(list(kept), dtype=np.int64)
        ends = np.array([box[0] for box in kept.values()], dtype=np.float64).reshape(-1, 2)
        columns, whole = None, (0, width)
        if any(box.columns not in (None, whole) for box in kept.values()):
            columns = np.array([box.columns or whole for box in kept.values()], dtype=np.float64).T / width
        return cls(machines, ends[:, 0], ends[:, 1], columns, copies)

    @classmethod
    def owned(cls, pieces: Sequence[Piece], n_machines: int, *, width: int) -> Runs:
        """Takes the rows of each machine that no machine before it has. Tiles have no copies."""
        ordered = sorted(pieces)
        if not any(a.columns is None and a.stop > b.start for a, b in pairwise(ordered)):
            return cls.of({piece.machine: piece.box for piece in pieces}, width=width)
        found, taken, copies = {}, NOTHING, np.zeros((2, n_machines))
        for piece in ordered:
            found[piece.machine] = (piece.rows - taken).hull
            taken |= piece.rows
            copies[:, piece.machine] = piece.start, piece.stop
        return cls.of(found, width=width, copies=copies)

    @property
    def sides(self) -> Numbers:
        """The columns, also of whole rows."""
        return (
            np.array([[0.0], [1.0]]).repeat(len(self.machines), 1) if self.columns is None else self.columns
        )

    def only(self, kept: npt.NDArray[np.bool_]) -> Runs:
        """Selects the rows of some machines, across the width."""
        return Runs(self.machines[kept], self.starts[kept], self.stops[kept])


class MessageCounts(NamedTuple):
    """For each machine of the cluster: messages sent and received, and rows in them."""

    sent: Numbers
    received: Numbers
    sent_rows: Numbers
    received_rows: Numbers

    @classmethod
    def none(cls, n_machines: int) -> MessageCounts:
        """Counts no messages at all."""
        return cls(*np.zeros((4, n_machines)))

    @property
    def reversed(self) -> MessageCounts:
        """The same counts in the opposite direction."""
        return MessageCounts(self.received, self.sent, self.received_rows, self.sent_rows)


def count_messages(owned: Runs, needed: Runs, n_machines: int) -> MessageCounts:
    """Counts the messages that bring each machine its needed rows from their owners.

    A machine with a copy reads that; others receive from the first owner.
    """
    if owned.copies is not None:
        needed = _without_copies(needed, owned.copies)
    if owned.columns is not None or needed.columns is not None:
        return _of_boxes(owned, needed, n_machines)
    found = MessageCounts.none(n_machines)
    ends = np.zeros((2, n_machines))
    ends[:, owned.machines] = owned.starts, owned.stops
    first, last = ends[:, needed.machines]
    own = np.maximum(np.minimum(last, needed.stops) - np.maximum(first, needed.starts), 0.0)
    found.received[needed.machines] = _overlapping(needed, np.sort(owned.starts), np.sort(owned.stops))
    found.received_rows[needed.machines] = needed.stops - needed.starts
    lows, highs = np.sort(needed.starts), np.sort(needed.stops)
    found.sent[owned.machines] = _overlapping(owned, lows, highs)
    found.sent_rows[owned.machines] = (
        _above(owned.stops, lows)
        - _above(owned.stops, highs)
        - _above(owned.starts, lows)
        + _above(owned.starts, highs)
    )
    for counted, rows in ((found.sent, found.sent_rows), (found.received, found.received_rows)):
        counted[needed.machines] -= own > 0
        rows[needed.machines] -= own
    return found


def _without_copies(needed: Runs, copies: Numbers) -> Runs:
    """Removes the machine's own copies from its needed rows; as one run, so rows between two count too."""
    first, last = copies[:, needed.machines]
    starts = np.where(first <= needed.starts, np.maximum(needed.starts, last), needed.starts)
    stops = np.where(last >= needed.stops, np.minimum(needed.stops, first), needed.stops)
    return Runs(needed.machines, starts, stops).only(starts < stops)


def _overlapping(runs: Runs, starts: Numbers, stops: Numbers) -> npt.NDArray[np.int64]:
    """Counts the intervals, of ascending ends, that each run overlaps."""
    return np.searchsorted(starts, runs.stops, "left") - np.searchsorted(stops, runs.starts, "right")


def _above(places: Numbers, ascending: Numbers) -> Numbers:
    """Sums, for each place, its distances from all values below it."""
    below = np.searchsorted(ascending, places, "right")
    sums = np.concatenate(([0.0], np.cumsum(ascending)))
    return places * below - sums[below]


def _of_boxes(owned: Runs, needed: Runs, n_machines: int) -> MessageCounts:
    """Compares pair by pair; a box counts as so many rows as its places would fill."""
    shared = np.ones((len(owned.machines), len(needed.machines)))
    for one, other in (
        ((owned.starts, owned.stops), (needed.starts, needed.stops)),
        (owned.sides, needed.sides),
    ):
        shared *= np.maximum(
            np.minimum(one[1][:, None], other[1]) - np.maximum(one[0][:, None], other[0]), 0.0
        )
    shared[owned.machines[:, None] == needed.machines] = 0.0
    found = MessageCounts.none(n_machines)
    for runs, axis, counted, rows in (
        (owned, 1, found.sent, found.sent_rows),
        (needed, 0, found.received, found.received_rows),
    ):
        counted[runs.machines] = (shared > 0).sum(axis=axis)
        rows[runs.machines] = shared.sum(axis=axis)
    return found


def joined(needed: Sequence[Runs], n_machines: int) -> Runs:
    """Joins the needed rows of each machine; rows between two runs count too."""
    if len(needed) == 1:
        return needed[0]
    boxed = any(runs.columns is not None for runs in needed)
    low, high = np.full((2, n_machines), np.inf), np.zeros((2, n_machines))
    for runs in needed:
        m, ends = runs.machines, [(runs.starts, runs.stops)]
        if boxed:
            ends.append((runs.sides[0], runs.sides[1]))
        for axis, (first, last) in enumerate(ends):
            low[axis, m] = np.minimum(low[axis, m], first)
            high[axis, m] = np.maximum(high[axis, m], last)
    machines = np.flatnonzero(high[0])
    columns = np.stack((low[1], high[1]))[:, machines] if boxed else None
    return Runs(machines, low[0, machines], high[0, machines], columns)


def exchanged(pieces: Sequence[Piece], n_machines: int) -> MessageCounts:
    """Counts the forward messages between machines of a layer cut by its inputs; backward is the reverse.

    Each sends its partial sums to the owners of the rows, and the gradient of its own rows to each other
    machine.
    """
    found = MessageCounts.none(n_machines)
    if pieces[0].inputs is not None:
        rows = np.array([piece.stop - piece.start for piece in pieces], dtype=np.float64)
        machines = [piece.machine for piece in pieces]
        found.sent[machines] = found.received[machines] = len(pieces) - 1
        found.sent_rows[machines] = rows.sum() - rows
        found.received_rows[machines] = (len(pieces) - 1) * rows
    return found
