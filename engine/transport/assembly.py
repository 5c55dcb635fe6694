"""Puts the messages of one sender together again, without copying, and without trusting a single field.

Sizes are checked before anything is kept: the first envelope says how large the payload will be, and from
then on the size and the place of every frame is known. A sender has at most one unfinished message here, so
what it can make this host hold is bounded by `max_payload`. Payloads that lie in shared memory are whole from
the beginning, and where they lie is checked by the ring. Nothing here knows sockets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from partita.engine.protocol.messages import MalformedMessage, Message, decode
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

Accept: TypeAlias = Callable[[Offer], RingReader | None]
"""Opens the memory that somebody offers; None where it is not what it should be, or was never handed over."""


def refused(offer: Offer) -> RingReader | None:
    """Accepts no memory."""
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

    __slots__ = ("_accept", "_max_payload", "_ring", "_unfinished", "malformed")

    def __init__(self, *, max_payload: int, accept: Accept = refused) -> None:
        self._max_payload = max_payload
        self._accept = accept
        self._ring: RingReader | None = None
        self._unfinished: _Unfinished | None = None
        self.malformed = 0

    def add(self, frames: Sequence[memoryview]) -> Complete | None:
        """Takes the frames of one ZeroMQ message, and returns the message that they complete, if they do.

        What does not fit is dropped, together with the message it would have belonged to, and counted.
        Never raises because of what the frames contain.
        """
        try:
            return self._added(frames)
        except (MalformedFrames, MalformedMessage, UnfitMemory):
            self.malformed += 1
            self._unfinished = None
            return None

    def close(self) -> None:
        """Nothing more is taken from this sender."""
        if self._ring is not None:
            self._ring.close()

    def _added(self, frames: Sequence[memoryview]) -> Complete | None:
        if not 1 <= len(frames) <= 2:
            raise MalformedFrames(f"{len(frames)} frames; an envelope and at most one chunk belong together")
        envelope = decode_envelope(frames[0])
        chunk = frames[1] if len(frames) == 2 else None
        match envelope:
            case Opening():
                return self._opened(envelope, chunk)
            case Following():
                return self._followed(envelope, chunk)
            case Offer():
                self.close()
                self._ring = None  # where accepting raises
                self._ring = self._accept(envelope)
                return None

    def _opened(self, opening: Opening, chunk: memoryview | None) -> Complete | None:
        if self._unfinished is not None:  # the connection broke in the middle of it
            self._unfinished = None
            self.malformed += 1
        n_bytes = opening.n_bytes or 0
        if n_bytes > self._max_payload:
            raise MalformedFrames(f"a payload of {n_bytes} bytes; {self._max_payload} are taken at most")
        if opening.place is not None:
            return self._placed(opening.place, opening, n_bytes, chunk)
        _check_chunk(chunk, n_bytes, 0)
        message = decode(opening.message)
        if opening.n_bytes is None:
            return message, None
        if chunk is None:
            return message, Payload(())
        if chunk.nbytes == n_bytes:
            return message, Payload((chunk,))
        self._unfinished = _Unfinished(opening, n_bytes, message, chunk)
        return None

    def _placed(self, place: int, opening: Opening, n_bytes: int, chunk: memoryview | None) -> Complete:
        if self._ring is None or chunk is not None:
            raise MalformedFrames("a payload in memory that this host does not share")
        span = self._ring.span(place, n_bytes)
        try:
            return decode(opening.message), Payload((span.view,), release=span.release)
        except MalformedMessage:
            span.release()
            raise

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
