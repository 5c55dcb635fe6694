"""Puts the messages of one sender together again, without copying, and without trusting a single field.

Sizes are checked before anything is kept: the first envelope says how large the payload will be, and from
then on the size and the place of every frame is known. A sender has at most one unfinished message here, so
what it can make this host hold is bounded by `max_payload`. Payloads that lie in shared memory are whole from
the beginning, and where they lie is checked by the ring. Nothing here knows sockets.

Messages are taken in the order of their numbers, each once. Where one is missing, a connection has broken:
those behind it are dropped, and the sender is asked to send again from there, if there is a way to ask it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from partita.engine.protocol.messages import Malformed, MalformedMessage, Message, decode
from partita.engine.transport.neighbour import FromNeighbour
from partita.engine.transport.payload import Payload
from partita.engine.transport.ring import RingReader, UnfitMemory
from partita.engine.transport.wire import (
    STREAM_BITS,
    Following,
    Got,
    MalformedFrames,
    Offer,
    Opening,
    Sent,
    chunk_size,
    decode_envelope,
)

Complete: TypeAlias = tuple[Message | Malformed, Payload | None]

Accept: TypeAlias = Callable[[Offer], FromNeighbour | None]
"""Opens the near way that somebody offers; None where nobody came with its token."""

_MOST_EARLY = 4096  # messages that overtook one on the other way; no sender that keeps the rules comes near

Answer: TypeAlias = Callable[[Got], bool]
"""Sends this back to the sender, or says that there is no way to it."""

ACKNOWLEDGE_MESSAGES: Final = 64
ACKNOWLEDGE_BYTES: Final = 4 << 20
"""What a sender keeps until it is acknowledged, in the good case: so much is acknowledged at once."""


def refused(offer: Offer) -> FromNeighbour | None:
    """Accepts no near way."""
    return None


def unanswered(got: Got) -> bool:
    """There is no way back."""
    return False


def unheeded(got: Got) -> None:
    """Nothing is kept that could be acknowledged."""


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
        following: the number of the message that comes next.
        malformed: how many groups of frames were no part of a message, and how many messages broke off.
    """

    __slots__ = (
        "_accept",
        "_answer",
        "_asked",
        "_early",
        "_heed",
        "_max_payload",
        "_near",
        "_unacknowledged",
        "_unfinished",
        "following",
        "malformed",
    )

    def __init__(
        self,
        *,
        max_payload: int,
        following: int = 0,
        accept: Accept = refused,
        answer: Answer = unanswered,
        heed: Callable[[Got], None] = unheeded,
    ) -> None:
        """Nothing has come yet.

        Args:
            max_payload: the largest that is taken (bytes).
            following: the number of the message that comes next.
            accept: opens a near way.
            answer: tells the sender what has come.
            heed: takes in what the sender says of messages to it.
        """
        self._max_payload = max_payload
        self._accept, self._answer, self._heed = accept, answer, heed
        self._near: FromNeighbour | None = None
        self._early: deque[tuple[Opening, RingReader]] = deque()  # from the near way, maybe ahead of others
        self.following = following
        self._asked = -1  # the last number that the sender was asked to send again
        self._unacknowledged = [0, 0]  # messages and bytes that came through the socket
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
        except (MalformedFrames, UnfitMemory):
            self.malformed += 1
            self._unfinished = None
        return complete

    def look(self) -> list[Complete]:
        """The messages that have arrived on the near way, and whose turn it is. Never raises, as `add`."""
        complete: list[Complete] = []
        self._hear()
        self._take_early(complete)
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
                if self._is_next(number, complete):
                    self._finish(number, self._opened_or_skipped(envelope, chunk), complete)
            case Following(number=number):
                self._finish(number, self._followed(envelope, chunk), complete)
            case Offer(number=number):
                if self._is_next(number, complete):
                    self._offered(envelope)
            case Got():
                self._heed(envelope)
            case Sent():
                self._sent(envelope, complete)

    def _is_next(self, number: int, complete: list[Complete]) -> bool:
        """Whether this is the number that comes next. If others are missing, the sender is asked for them."""
        self._hear()
        stream = number >> STREAM_BITS << STREAM_BITS
        if stream > self.following:
            self._skip_to(stream, complete)
        self._take_early(complete)
        if number > self.following and not self._ask():
            self._skip_to(number, complete)
        return number == self.following

    def _ask(self) -> bool:
        """Asks the sender, once, to send again what comes next; False where it cannot be asked."""
        if self._asked != self.following:
            if not self._answer(Got(self.following, again=True)):
                return False
            self._asked = self.following
        return True

    def _skip_to(self, number: int, complete: list[Complete]) -> None:
        """What has not come below this number never will."""
        self._take_early(complete, before=number)
        if number > self.following:
            self.following = number
            self._unfinished = None

    def _sent(self, sent: Sent, complete: list[Complete]) -> None:
        self._hear()
        self._take_early(complete)
        self._skip_to(sent.first, complete)
        if sent.next is not None:
            self._unacknowledged = [0, 0]
            self._answer(Got(self.following, again=self.following < sent.next))

    def _opened_or_skipped(self, opening: Opening, chunk: memoryview | None) -> Complete | None:
        """One that can never be taken is not asked for again."""
        try:
            return self._opened(opening, chunk)
        except MalformedMessage as error:
            self.malformed += 1
            return Malformed(str(error)), None
        except (MalformedFrames, UnfitMemory):
            self.following = opening.number + 1
            raise

    def _finish(self, number: int, found: Complete | None, complete: list[Complete]) -> None:
        """Takes a message that came through the socket, if it is whole, and those that waited for it."""
        if found is None:
            return
        self.following = number + 1
        complete.append(found)
        waiting = self._unacknowledged
        waiting[0] += 1
        waiting[1] += 0 if found[1] is None else found[1].n_bytes
        if waiting[0] >= ACKNOWLEDGE_MESSAGES or waiting[1] >= ACKNOWLEDGE_BYTES:
            self._unacknowledged = [0, 0]
            self._answer(Got(self.following))
        self._take_early(complete)

    def _offered(self, offer: Offer) -> None:
        """All that was sent on the near way before has been heard."""
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

    def _take_early(self, complete: list[Complete], *, before: int = 0) -> None:
        """Those whose turn it is: what was sent before them has come, or is lost (below `before`)."""
        while self._early and self._unfinished is None:
            opening, ring = self._early[0]
            if opening.number > self.following and opening.number >= before:
                return
            self._early.popleft()
            self.following = max(self.following, opening.number + 1)
            try:
                complete.append(self._whole(opening, ring))
            except MalformedMessage as error:
                self.malformed += 1
                complete.append((Malformed(str(error)), None))
            except (MalformedFrames, UnfitMemory):
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
