"""The messages that a peer has not acknowledged, as the frames in which they were sent: nothing is copied.

A connection that breaks loses what was on its way, and neither ZeroMQ nor TCP says how much that was. So the
sender keeps what it has sent until the peer acknowledges it, once for many messages. Messages that go through
memory that both share cannot be lost while both live, and are not kept. Nothing here knows sockets or clocks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

import zmq

Group: TypeAlias = tuple[bytes, zmq.Frame | None]
"""An envelope, and the chunk beside it."""

MOST_KEPT_BYTES: Final = 64 << 20
"""More than is on its way to a peer that acknowledges as it should; one that does not costs no more."""


class Kept:
    """Unacknowledged messages in the order of their numbers, which may have gaps."""

    def __init__(self) -> None:
        self._messages: deque[tuple[int, Sequence[Group], int]] = deque()
        self.n_bytes = 0

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def first(self) -> int | None:
        """The number of the oldest one."""
        return self._messages[0][0] if self._messages else None

    def add(self, number: int, groups: Sequence[Group], *, waiting_bytes: int) -> None:
        """One more was sent.

        Args:
            number: of the message.
            groups: its frames.
            waiting_bytes: how much of all that is kept the socket does not have yet; that has its own bound.
        """
        n_bytes = sum(size(*group) for group in groups)
        self._messages.append((number, groups, n_bytes))
        self.n_bytes += n_bytes
        while self.n_bytes - waiting_bytes > MOST_KEPT_BYTES and len(self._messages) > 1:
            self._drop_first()

    def drop(self, *, below: int) -> bool:
        """Those below a number have come; whether that is news."""
        before = len(self._messages)
        while self._messages and self._messages[0][0] < below:
            self._drop_first()
        return len(self._messages) < before

    def groups(self) -> Iterator[Group]:
        """The frames of all of them."""
        for _, groups, _ in self._messages:
            yield from groups

    def _drop_first(self) -> None:
        self.n_bytes -= self._messages.popleft()[2]


def size(envelope: bytes, frame: zmq.Frame | None) -> int:
    """The bytes of a group."""
    return len(envelope) + (0 if frame is None else len(frame))
