"""Retransmission queue: unacknowledged messages to a peer, as the frames that were sent, without a copy.

A broken connection loses the frames in flight, and neither ZeroMQ nor TCP reports how many. So the sender
retains messages until the peer acknowledges them. Messages in shared memory cannot be lost while both
processes live, and are not retained. This module does not know sockets or clocks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

import zmq

Group: TypeAlias = tuple[bytes, zmq.Frame | None]
"""An envelope and its chunk."""

MAX_UNACKED_BYTES: Final = 64 << 20  # bound of a queue: more than is in flight to a correct peer


class RetransmitQueue:
    """Unacknowledged messages in the order of their numbers, which may have gaps."""

    def __init__(self) -> None:
        self._messages: deque[tuple[int, Sequence[Group], int]] = deque()
        self.n_bytes = 0

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def first(self) -> int | None:
        """Number of the oldest message."""
        return self._messages[0][0] if self._messages else None

    def add(self, number: int, groups: Sequence[Group], *, waiting_bytes: int) -> None:
        """Appends the frames of a message, and drops the oldest messages beyond the bound.

        The bound does not include `waiting_bytes`, which the socket has not taken yet.
        """
        n_bytes = sum(size(*group) for group in groups)
        self._messages.append((number, groups, n_bytes))
        self.n_bytes += n_bytes
        while self.n_bytes - waiting_bytes > MAX_UNACKED_BYTES and len(self._messages) > 1:
            self._drop_first()

    def drop(self, *, below: int) -> bool:
        """Drops acknowledged messages; returns whether there were any."""
        before = len(self._messages)
        while self._messages and self._messages[0][0] < below:
            self._drop_first()
        return len(self._messages) < before

    def groups(self) -> Iterator[Group]:
        """Yields the frames of all messages."""
        for _, groups, _ in self._messages:
            yield from groups

    def _drop_first(self) -> None:
        self.n_bytes -= self._messages.popleft()[2]


def size(envelope: bytes, frame: zmq.Frame | None) -> int:
    """Returns the bytes of a group."""
    return len(envelope) + (0 if frame is None else len(frame))
