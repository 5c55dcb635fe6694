"""Puts the messages of one sender together again, without copying, and without trusting a single field.

Sizes are checked before anything is kept: the first envelope says how large the payload will be, and from
then on the size and the place of every frame is known. A sender has at most one unfinished message here, so
what it can make this host hold is bounded by `max_payload`. Payloads that lie in shared memory are whole from
the beginning, and where they lie is checked by the ring. Nothing here knows sockets.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias

from partita.engine.protocol.messages import MalformedMessage, Message, decode
from partita.engine.transport.neighbour import FromNeighbour
from partita.engine.transport.payload import Payload
from partita.engine.transport.ring import RingReader, UnfitMemory
from partita.engine.transport.wire import (
    Following,
    MalformedFrames,
    Offer,
    Opening,
    chunk_size,
    decode_envelope,
)

Complete: TypeAlias = tuple[Message, Payload | None]

Accept: TypeAlias = Callable[[Offer], FromNeighbour | None]
"""Opens the near way that somebody offers; None where nobody came with its token."""

_MOST_EARLY = 4096  # messages that overtook one on the other way; no sender that keeps the rules comes near


def refused(offer: Offer) -> FromNeighbour | None:
    """Accepts no near way."""
    return None


class _Unfinished:
    """A message of which chunks are still to come."""

    __slots__ = ("message", "n_bytes", "number", "pieces", "taken")

    def __init__(self, opening: Opening, n_bytes: int, message: Message, piece: memoryview) -> None:
        self.number = opening.number
        self.n_bytes = n_bytes
        self.message = message
        self.pieces = [piece]
        self.taken = piece.nbytes


class Assembly:
    """The message that one sender is in the middle of.

    Attributes:
        malformed: how many groups of frames were no part of a message, and how many messages broke off.
    """

    __slots__ = ("_accept", "_early", "_max_payload", "_near", "_next", "_unfinished", "malformed")

    def __init__(self, *, max_payload: int, accept: Accept = refused) -> None:
        self._max_payload = max_payload
        self._accept = accept
        self._near: FromNeighbour | None = None
        self._early: deque[tuple[Opening, RingReader]] = deque()  # from the near way, maybe ahead of others
        self._next = 0  # the number of the message that comes next
        self._unfinished: _Unfinished | None = None
        self.malformed = 0

    def add(self, frames: Sequence[memoryview]) -> list[Complete]:
        """Takes the frames of one ZeroMQ message, and returns the messages that they complete, in order.

        What does not fit is dropped, together with the message it would have belonged to, and counted.
        Never raises because of what the frames contain.
        """
        complete: list[Complete] = []
        try:
            self._add(frames, complete)
        except (MalformedFrames, MalformedMessage, UnfitMemory):
            self.malformed += 1
            self._unfinished = None
        return complete

    def look(self) -> list[Complete]:
        """The messages that have arrived on the near way, and whose turn it is. Never raises, as `add`."""
        complete: list[Complete] = []
        self._hear()
        if self._unfinished is None:
            self._take_early(complete, before=None)
        return complete

    def close(self) -> None:
        """Nothing more is taken from this sender."""
        self._early.clear()
        if self._near is not None:
            self._near.close()
            self._near = None

    def _add(self, frames: Sequence[memoryview], complete: list[Complete]) -> None:
        if not 1 <= len(frames) <= 2:
            raise MalformedFrames(f"{len(frames)} frames; an envelope and at most one chunk belong together")
        envelope = decode_envelope(frames[0])
        chunk = frames[1] if len(frames) == 2 else None
        match envelope:
            case Opening(number=number):
                if self._unfinished is not None:  # the connection broke in the middle of it
                    self._unfinished = None
                    self.malformed += 1
                self._hear()
                self._take_early(complete, before=number)
                self._next = number + 1
                found = self._opened(envelope, chunk)
            case Following():
                found = self._followed(envelope, chunk)
            case Offer():
                self._offered(envelope)
                return
        if found is not None:
            complete.append(found)
            self._take_early(complete, before=None)

    def _offered(self, offer: Offer) -> None:
        self._hear()  # all that was sent on the way before
        if self._near is not None:
            self._near.close()
        self._near = None  # where accepting raises
        self._near = self._accept(offer)

    def _hear(self) -> None:
        """Takes in what has arrived on the near way: places are those of its ring."""
        near = self._near
        for header in near.headers() if near is not None else ():
            assert near is not None
            try:
                opening = decode_envelope(header)
                if not isinstance(opening, Opening) or len(self._early) >= _MOST_EARLY:
                    raise MalformedFrames("not what may come on the near way")
                self._early.append((opening, near.ring))
            except MalformedFrames:
                self.malformed += 1

    def _take_early(self, complete: list[Complete], *, before: int | None) -> None:
        """Those whose turn it is: what was sent before them has come, or is lost (below `before`)."""
        while self._early:
            opening, ring = self._early[0]
            if opening.number > self._next and (before is None or opening.number >= before):
                return
            self._early.popleft()
            self._next = opening.number + 1
            try:
                complete.append(self._whole(opening, ring))
            except (MalformedFrames, MalformedMessage, UnfitMemory):
                self.malformed += 1

    def _opened(self, opening: Opening, chunk: memoryview | None) -> Complete | None:
        if opening.place is not None:
            if chunk is not None:
                raise MalformedFrames("a chunk beside a payload that lies in shared memory")
            return self._whole(opening, None if self._near is None else self._near.ring)
        n_bytes = self._size(opening)
        _check_chunk(chunk, n_bytes, 0)
        message = decode(opening.message)
        if chunk is None:
            return message, None if opening.n_bytes is None else Payload(())
        if chunk.nbytes == n_bytes:
            return message, Payload((chunk,))
        self._unfinished = _Unfinished(opening, n_bytes, message, chunk)
        return None

    def _whole(self, opening: Opening, ring: RingReader | None) -> Complete:
        """A message with nothing beside its envelope."""
        n_bytes = self._size(opening)
        if opening.place is None:
            _check_chunk(None, n_bytes, 0)
            return decode(opening.message), None if opening.n_bytes is None else Payload(())
        if ring is None:
            raise MalformedFrames("a payload in memory that this host does not share")
        span = ring.span(opening.place, n_bytes)
        try:
            return decode(opening.message), Payload((span.view,), release=span.release)
        except MalformedMessage:
            span.release()
            raise

    def _size(self, opening: Opening) -> int:
        n_bytes = opening.n_bytes or 0
        if n_bytes > self._max_payload:
            raise MalformedFrames(f"a payload of {n_bytes} bytes; {self._max_payload} are taken at most")
        return n_bytes

    def _followed(self, following: Following, chunk: memoryview | None) -> Complete | None:
        unfinished = self._unfinished
        if unfinished is None:
            raise MalformedFrames("a chunk of a message that was never begun")
        if (following.number, following.index) != (unfinished.number, len(unfinished.pieces)):
            raise MalformedFrames(f"chunk {following.index} of message {following.number} is out of order")
        _check_chunk(chunk, unfinished.n_bytes, following.index)
        assert chunk is not None, "an unfinished message expects a chunk of at least one byte"
        unfinished.pieces.append(chunk)
        unfinished.taken += chunk.nbytes
        if unfinished.taken < unfinished.n_bytes:
            return None
        self._unfinished = None
        return unfinished.message, Payload(unfinished.pieces)


def _check_chunk(chunk: memoryview | None, n_bytes: int, index: int) -> None:
    """A chunk has exactly the size that its place demands, and is missing exactly where that is zero."""
    expected = chunk_size(n_bytes, index)
    if (chunk is not None) != (expected > 0) or (chunk is not None and chunk.nbytes != expected):
        found = "none" if chunk is None else f"{chunk.nbytes} bytes"
        raise MalformedFrames(f"chunk {index} of {n_bytes} bytes is {found}; it must have {expected} bytes")
