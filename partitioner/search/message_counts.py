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

    @classmethod
    def of(cls, boxes: Mapping[int, Box], *, width: int = 1) -> Runs:
        """Takes the rows of a box for each machine; empty boxes are left out.

        Args:
            boxes: rows of a layer, or rows and columns of a picture.
            width: width of the picture.
        """
        kept = {m: box for m, box in boxes.items() if box[0][0] < box[0][1]}
        machines = np.array(list(kept), dtype=np.int64)
        ends = np.array([box[0] for box in kept.values()], dtype=np.float64).reshape(-1, 2)
        columns, whole = None, (0, width)
        if any(box.columns not in (None, whole) for box in kept.values()):
            columns = np.array([box.columns or whole for box in kept.values()], dtype=np.float64) / width
        return cls(machines, ends[:, 0], ends[:, 1], columns)


@dataclass(frozen=True)
class MessageCounts:
    """For each machine of the cluster: messages sent and received, and rows in them."""

    sent: Numbers
    received: Numbers
    sent_rows: Numbers
    received_rows: Numbers

    @classmethod
    def none(cls, n_machines: int) -> MessageCounts:
        """Counts no messages at all."""
        return cls(*(np.zeros(n_machines) for _ in range(4)))

    def __add__(self, other: MessageCounts) -> MessageCounts:
        return MessageCounts(
            self.sent + other.sent,
            self.received + other.received,
            self.sent_rows + other.sent_rows,
            self.received_rows + other.received_rows,
        )

    @property
    def reversed(self) -> MessageCounts:
        """The same counts in the opposite direction."""
        return MessageCounts(self.received, self.sent, self.received_rows, self.sent_rows)


def count_messages(owned: Runs, needed: Runs, n_machines: int) -> MessageCounts:
    """Counts the messages that bring each machine its needed rows from their owners."""
    if owned.columns is not None or needed.columns is not None:
        return _of_boxes(owned, needed, n_machines)
    found = MessageCounts.none(n_machines)
    order = np.argsort(owned.starts, kind="stable")
    starts, stops = owned.starts[order], owned.stops[order]
    own = _overlap_with_own(owned, needed, n_machines)
    senders = np.searchsorted(starts, needed.stops, "left") - np.searchsorted(stops, needed.starts, "right")
    found.received[needed.machines] = senders
    found.received_rows[needed.machines] = needed.stops - needed.starts
    lows, highs = np.sort(needed.starts), np.sort(needed.stops)
    consumers = np.searchsorted(lows, owned.stops, "left") - np.searchsorted(highs, owned.starts, "right")
    found.sent[owned.machines] = consumers
    found.sent_rows[owned.machines] = (
        _above(owned.stops, lows)
        - _above(owned.stops, highs)
        - _above(owned.starts, lows)
        + _above(owned.starts, highs)
    )
    for counted, rows in ((found.sent, found.sent_rows), (found.received, found.received_rows)):
        counted -= own > 0
        rows -= own
    return found


def _of_boxes(owned: Runs, needed: Runs, n_machines: int) -> MessageCounts:
    """Compares pair by pair; a box counts as so many rows as its places would fill."""
    shared = _overlaps((owned.starts, owned.stops), (needed.starts, needed.stops))
    shared *= _overlaps(_columns(owned), _columns(needed))
    shared[owned.machines[:, None] == needed.machines[None, :]] = 0.0
    found = MessageCounts.none(n_machines)
    np.add.at(found.sent, owned.machines, (shared > 0).sum(axis=1))
    np.add.at(found.received, needed.machines, (shared > 0).sum(axis=0))
    np.add.at(found.sent_rows, owned.machines, shared.sum(axis=1))
    np.add.at(found.received_rows, needed.machines, shared.sum(axis=0))
    return found


def _columns(runs: Runs) -> tuple[Numbers, Numbers]:
    if runs.columns is None:
        return np.zeros(len(runs.machines)), np.ones(len(runs.machines))
    return runs.columns[:, 0], runs.columns[:, 1]


def _overlaps(one: tuple[Numbers, Numbers], other: tuple[Numbers, Numbers]) -> Numbers:
    """Measures the overlap of each interval with each other one."""
    low = np.maximum(one[0][:, None], other[0][None, :])
    high = np.minimum(one[1][:, None], other[1][None, :])
    found: Numbers = np.maximum(high - low, 0.0)
    return found


def joined(needed: Sequence[Runs], n_machines: int) -> Runs:
    """Joins the needed rows of each machine; rows between two runs count too."""
    if len(needed) == 1:
        return needed[0]
    starts, stops = np.full(n_machines, np.inf), np.zeros(n_machines)
    lefts, rights = np.ones(n_machines), np.zeros(n_machines)
    for runs in needed:
        np.minimum.at(starts, runs.machines, runs.starts)
        np.maximum.at(stops, runs.machines, runs.stops)
        np.minimum.at(lefts, runs.machines, _columns(runs)[0])
        np.maximum.at(rights, runs.machines, _columns(runs)[1])
    machines = np.flatnonzero(stops)
    boxed = any(runs.columns is not None for runs in needed)
    columns = np.stack((lefts[machines], rights[machines]), axis=1) if boxed else None
    return Runs(machines, starts[machines], stops[machines], columns)


def _overlap_with_own(owned: Runs, needed: Runs, n_machines: int) -> Numbers:
    starts, stops = np.zeros(n_machines), np.zeros(n_machines)
    starts[owned.machines], stops[owned.machines] = owned.starts, owned.stops
    found = np.zeros(n_machines)
    low = np.maximum(starts[needed.machines], needed.starts)
    high = np.minimum(stops[needed.machines], needed.stops)
    found[needed.machines] = np.maximum(high - low, 0.0)
    return found


def _above(places: Numbers, ascending: Numbers) -> Numbers:
    """Sums, for each place, its distances from all values below it."""
    below = np.searchsorted(ascending, places, "right")
    sums = np.concatenate(([0.0], np.cumsum(ascending)))
    return places * below - sums[below]


def are_copies(pieces: Sequence[Piece]) -> bool:
    """Whether several machines have the same rows. Tiles have no copies."""
    ordered = sorted(pieces)
    return any(a.columns is None and a.stop > b.start for a, b in pairwise(ordered))


def homes(pieces: Sequence[Piece]) -> dict[int, Box]:
    """Finds the rows of each machine that no machine before it has."""
    if not are_copies(pieces):
        return {piece.machine: piece.box for piece in pieces}
    found: dict[int, Box] = {}
    taken = NOTHING
    for piece in sorted(pieces):
        found[piece.machine] = (piece.rows - taken).hull
        taken |= piece.rows
    return found


def without_own(needed: Runs, pieces: Sequence[Piece], n_machines: int) -> Runs:
    """Removes the machine's own copies from its needed rows; as one run, so rows between two count too."""
    own = np.zeros((2, n_machines))
    for piece in pieces:
        own[:, piece.machine] = piece.start, piece.stop
    first, last = own[:, needed.machines]
    starts = np.where(first <= needed.starts, np.maximum(needed.starts, last), needed.starts)
    stops = np.where(last >= needed.stops, np.minimum(needed.stops, first), needed.stops)
    left = starts < stops
    return Runs(needed.machines[left], starts[left], stops[left])


def exchanged(pieces: Sequence[Piece], n_machines: int) -> MessageCounts:
    """Counts the forward messages between machines of a layer cut by its inputs; backward is the reverse.

    Each sends its partial sums to the owners of the rows, and the gradient of its own rows to each other
    machine.
    """
    found = MessageCounts.none(n_machines)
    rows = np.array([piece.stop - piece.start for piece in pieces], dtype=np.float64)
    machines = np.array([piece.machine for piece in pieces], dtype=np.int64)
    if pieces[0].inputs is not None:
        found.sent[machines] = found.received[machines] = len(pieces) - 1
        found.sent_rows[machines] = rows.sum() - rows
        found.received_rows[machines] = (len(pieces) - 1) * rows
    return found
