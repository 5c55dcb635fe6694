"""What copies of rows, and layers that are cut by their inputs, change in what travels."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from partita.layers.box import NOTHING, Box
from partita.partitioner.assign.piece import Piece
from partita.partitioner.search.message_counts import MessageCounts, Runs


def are_copies(pieces: Sequence[Piece]) -> bool:
    """Whether several machines have the same rows. Tiles have no copies."""
    ordered = sorted(pieces)
    return any(a.columns is None and a.stop > b.start for a, b in pairwise(ordered))


def homes(pieces: Sequence[Piece]) -> dict[int, Box]:
    """The rows of each machine that no machine before it has."""
    if not are_copies(pieces):
        return {piece.machine: piece.box for piece in pieces}
    found: dict[int, Box] = {}
    taken = NOTHING
    for piece in sorted(pieces):
        found[piece.machine] = (piece.rows - taken).hull
        taken |= piece.rows
    return found


def without_own(heard: Runs, pieces: Sequence[Piece], n_machines: int) -> Runs:
    """What machines hear besides what they have a copy of; as one run, so rows between two count too."""
    own = np.zeros((2, n_machines))
    for piece in pieces:
        own[:, piece.machine] = piece.start, piece.stop
    first, last = own[:, heard.machines]
    starts = np.where(first <= heard.starts, np.maximum(heard.starts, last), heard.starts)
    stops = np.where(last >= heard.stops, np.minimum(heard.stops, first), heard.stops)
    left = starts < stops
    return Runs(heard.machines[left], starts[left], stops[left])


def exchanged(pieces: Sequence[Piece], n_machines: int) -> MessageCounts:
    """What the machines of a layer that is cut by its inputs send on the way up; down, it is the reverse.

    Each sends its sums to whoever has the rows; the errors of its rows go to each of the others.
    """
    found = MessageCounts.none(n_machines)
    rows = np.array([piece.stop - piece.start for piece in pieces], dtype=np.float64)
    machines = np.array([piece.machine for piece in pieces], dtype=np.int64)
    if pieces[0].inputs is not None:
        found.sent[machines] = found.received[machines] = len(pieces) - 1
        found.sent_rows[machines] = rows.sum() - rows
        found.received_rows[machines] = (len(pieces) - 1) * rows
    return found
