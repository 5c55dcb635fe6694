"""Reassembly of one sender's messages from frames, without copying and without trusting any field.

Sizes are checked before anything is stored: the first envelope gives the size of the payload, and from then
on the size and position of every frame is known. Each sender has at most one unfinished message, so
`max_payload` bounds the memory that a sender can occupy. Payloads in shared memory are complete at once; the
ring buffer checks their position. This module does not know sockets.

Messages are delivered once, in the order of their numbers. A gap means that a connection broke: later
messages are dropped and the sender is asked to send again from the gap, if it can be reached.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from partita.engine.protocol.messages import Malformed, MalformedMessage, Message, SetUp, decode
from partita.engine.transport.payload import Payload
from partita.engine.transport.ring_buffer import InvalidMemory, RingReader, RingSlice
from partita.engine.transport.shared_link import SharedLinkReceiver
from partita.engine.transport.shared_region import (
    FIRST_PLACE,
    MAX_REGIONS,
    REGION_BITS,
    RegionReader,
    RegionSlice,
)
from partita.engine.transport.stream_receiver import Landed, StreamReceiver
from partita.engine.transport.wire import (
    INLINE_BYTES,
    STREAM_BITS,
    Ack,
    Continuation,
    LinkOffer,
    MalformedFrames,
    MessageStart,
    RegionOffer,
    SendWindow,
    StreamOffer,
    chunk_size,
    decode_envelope,
)

Delivered: TypeAlias = tuple[Message | Malformed, Payload | None]

AcceptLink: TypeAlias = Callable[[LinkOffer | StreamOffer], SharedLinkReceiver | StreamReceiver | None]
"""Opens an offered link; returns None where that cannot be done.

Raises LinkRefused where it must not be done."""

AcceptRegion: TypeAlias = Callable[[RegionOffer], RegionReader | None]
"""Opens an offered region; returns None where no connection with its token exists."""

SendAck: TypeAlias = Callable[[Ack], bool]
"""Sends an acknowledgement to the sender; returns False where the sender cannot be reached."""

ACK_MESSAGES: Final = 64
ACK_BYTES: Final = 4 << 20  # an acknowledgement is sent after this many messages or bytes
_MAX_EARLY: Final = 4096  # messages on the shared link ahead of a missing one; no correct sender comes near


class BrokenOff(MalformedFrames):
    """Frames that belong to what was lost with a broken connection, which may be nobody's fault."""


class LinkRefused(ValueError):
    """An offered link is not what this host was told to use."""


@dataclass(slots=True)
class _Unfinished:
    """A message with missing chunks."""

    number: int
    n_bytes: int
    message: Message
    pieces: list[memoryview]
    taken: int


@dataclass(eq=False, kw_only=True)
class Reassembly:
    """State of the messages of one sender.

    Payloads up to `max_payload` (bytes) are accepted. `following` is the number of the next message; `on_ack`
    processes the sender's acknowledgements of messages to it. `malformed` counts dropped frame groups, and
    messages that broke off.
    """

    max_payload: int
    following: int = 0
    accept: AcceptLink = lambda offer: None
    accept_region: AcceptRegion = lambda offer: None
    send_ack: SendAck = lambda ack: False
    on_ack: Callable[[Ack], None] = lambda ack: None

    def __post_init__(self) -> None:
        self._link: SharedLinkReceiver | StreamReceiver | None = None
        # From the link, possibly ahead of messages from the socket.
        self._early: deque[tuple[MessageStart, RingReader | Landed | None]] = deque()
        self._regions: dict[int, RegionReader] = {}
        self._requested = -1  # last number whose retransmission was requested
        self._unacknowledged = [0, 0]  # messages and bytes received through the socket
        self._unfinished: _Unfinished | None = None
        self.malformed = 0

    def add(self, frames: Sequence[memoryview]) -> list[Delivered]:
        """Processes the frames of one ZeroMQ message and returns the messages they complete, in order.

        Invalid frames are dropped with the message they belong to, and counted. Never raises because of the
        frames' contents.
        """
        complete: list[Delivered] = []
        try:
            self._add(frames, complete)
        except (MalformedFrames, InvalidMemory) as error:
            self._drop(error, complete)
            self._unfinished = None
        return complete

    def _drop(self, error: ValueError, complete: list[Delivered]) -> None:
        """Counts frames that are dropped; those that no correct sender sends are delivered as `Malformed`."""
        self.malformed += 1
        if not isinstance(error, BrokenOff):
            complete.append((Malformed(str(error)), None))

    def poll_link(self) -> list[Delivered]:
        """Returns the messages on the shared link that are next in order. Never raises, as `add`."""
        complete: list[Delivered] = []
        self._read_link(complete)
        if self._early:
            self._take_early(complete)
        return complete

    def close(self) -> None:
        """Closes the shared link and drops everything that was not delivered."""
        self._early.clear()
        self._regions.clear()
        if self._link is not None:
            self._link.close()
            self._link = None

    def _add(self, frames: Sequence[memoryview], complete: list[Delivered]) -> None:
        if not 1 <= len(frames) <= 2:
            raise MalformedFrames(f"{len(frames)} frames; an envelope and at most one chunk belong together")
        envelope = decode_envelope(frames[0])
        chunk = frames[1] if len(frames) == 2 else None
        match envelope:
            case MessageStart(number=number):
                if self._unfinished is not None:  # the connection broke in the middle of it
                    self._unfinished = None
                    self.malformed += 1
                if envelope.reading is not None:
                    raise MalformedFrames("a payload that is read outside a ring, beside the link")
                if self._is_next(number, complete):
                    try:
                        found = self._start(envelope, chunk, None if self._link is None else self._link.ring)
                    except (MalformedFrames, InvalidMemory):
                        self.following = number + 1  # never acceptable, so not requested again
                        raise
                    self._finish(number, found, complete)
            case Continuation(number=number):
                self._finish(number, self._continue(envelope, chunk), complete)
            case LinkOffer(number=number) | StreamOffer(number=number):
                if self._is_next(number, complete):
                    self._open_link(envelope, complete)
            case RegionOffer():
                self._open_region(envelope)
            case Ack():
                self.on_ack(envelope)
            case SendWindow():
                self._advance(envelope, complete)

    def _is_next(self, number: int, complete: list[Delivered]) -> bool:
        """Returns whether this is the next number. Requests retransmission of missing messages."""
        self._read_link(complete)
        stream = number >> STREAM_BITS << STREAM_BITS
        if stream > self.following:
            self._skip_to(stream, complete)
        self._take_early(complete)
        if number > self.following and not self._request_missing():
            self._skip_to(number, complete)
        return number == self.following

    def _request_missing(self) -> bool:
        """Requests, once, retransmission from the next number on; False where the sender is unreachable."""
        if self._requested != self.following:
            if not self.send_ack(Ack(self.following, resend=True)):
                return False
            self._requested = self.following
        return True

    def _skip_to(self, number: int, complete: list[Delivered]) -> None:
        """Gives up the missing messages below this number."""
        self._take_early(complete, before=number)
        if number > self.following:
            self.following = number
            self._unfinished = None

    def _advance(self, window: SendWindow, complete: list[Delivered]) -> None:
        self._read_link(complete)
        self._take_early(complete)
        if window.next is None and isinstance(self._link, StreamReceiver):
            self._link.close()  # the sender has, and begins again here
            self._link = None
        self._skip_to(window.first, complete)
        if window.next is not None:
            self._unacknowledged = [0, 0]
            self.send_ack(Ack(self.following, resend=self.following < window.next))

    def _finish(self, number: int, found: Delivered | None, complete: list[Delivered]) -> None:
        """Delivers a complete message from the socket, and the early ones that follow it."""
        if found is None:
            return
        self.following = number + 1
        complete.append(found)
        self._acknowledge(found)
        self._take_early(complete)

    def _acknowledge(self, delivered: Delivered) -> None:
        """Counts a message that its sender retains, and acknowledges when there are many."""
        waiting = self._unacknowledged
        waiting[0] += 1
        waiting[1] += 0 if delivered[1] is None else delivered[1].n_bytes
        if waiting[0] >= ACK_MESSAGES or waiting[1] >= ACK_BYTES:
            self._unacknowledged = [0, 0]
            self.send_ack(Ack(self.following))

    def _open_link(self, offer: LinkOffer | StreamOffer, complete: list[Delivered]) -> None:
        """Replaces the link; everything sent on the old one has been read."""
        if self._link is not None:
            self._link.close()
        self._link = None  # where accepting raises
        try:
            self._link = self.accept(offer)
        except LinkRefused as refused:
            complete.append((Malformed(str(refused)), None))

    def _open_region(self, offer: RegionOffer) -> None:
        """Maps a region of the sender, and says so."""
        if offer.region in self._regions or len(self._regions) >= MAX_REGIONS:
            raise MalformedFrames(f"region {offer.region} beside {len(self._regions)} others")
        opened = self.accept_region(offer)
        if opened is not None:
            self._regions[offer.region] = opened
            self.send_ack(Ack(self.following, region=offer.region))

    def _read_link(self, complete: list[Delivered]) -> None:
        """Reads the headers on the link, whose positions refer to its own ring."""
        link = self._link
        for header, memory in link.arrived() if link is not None else ():
            try:
                if not header:
                    raise BrokenOff("what the key of a stream link does not open")
                start = decode_envelope(header)
                if not isinstance(start, MessageStart) or len(self._early) >= _MAX_EARLY:
                    raise MalformedFrames("not a message on the link")
                self._early.append((start, memory))
            except MalformedFrames as error:
                self._drop(error, complete)

    def _take_early(self, complete: list[Delivered], *, before: int = 0) -> None:
        """Delivers early messages whose predecessors have arrived, or are lost (below `before`)."""
        while self._early and self._unfinished is None:
            start, memory = self._early[0]
            if start.number > self.following and start.number >= before:
                return
            self._early.popleft()
            is_new = start.number >= self.following  # else the socket has delivered it, when the link broke
            self.following = max(self.following, start.number + 1)
            try:
                found = self._start(start, None, memory)
                assert found is not None, "a message without chunks is complete"
                if is_new:
                    complete.append(found)
                if isinstance(self._link, StreamReceiver):
                    self._acknowledge(found)
            except (MalformedFrames, InvalidMemory) as error:
                self._drop(error, complete)

    def _start(
        self, start: MessageStart, chunk: memoryview | None, memory: RingReader | Landed | None
    ) -> Delivered | None:
        """Returns the message if it is complete; else stores it as unfinished."""
        n_bytes = start.n_bytes or 0
        if n_bytes > self.max_payload:
            raise MalformedFrames(f"a payload of {n_bytes} bytes; {self.max_payload} are accepted at most")
        shared: RegionSlice | RingSlice | Landed | None = None
        if start.payload is not None:
            if chunk is not None or start.place is not None or not 0 < n_bytes <= INLINE_BYTES:
                raise MalformedFrames("a payload beside the envelope that it is in")
            if len(start.payload) != n_bytes:
                raise MalformedFrames(f"{len(start.payload)} bytes of a payload of {n_bytes}")
            chunk = memoryview(start.payload)
        elif start.place is None:
            if 0 < n_bytes <= INLINE_BYTES:
                raise MalformedFrames(f"a payload of {n_bytes} bytes, which belongs in the envelope")
            _check_chunk(chunk, n_bytes, 0)
        elif start.place >= FIRST_PLACE and chunk is None:
            shared = self._in_region(start, n_bytes, memory if isinstance(memory, RingReader) else None)
        elif chunk is not None or memory is None:
            raise MalformedFrames("a payload in memory that is not shared, or with a chunk beside it")
        else:
            shared = memory.slice_at(start.place, n_bytes)
        try:
            message = decode(start.message)
            if shared is not None and shared.is_clear and isinstance(message, SetUp):
                raise MalformedMessage("a task that was not sealed")
        except MalformedMessage as error:
            if shared is not None:
                shared.release()
            self.malformed += 1
            return Malformed(str(error)), None
        if shared is not None:
            return message, Payload((shared.view,), release=shared.release, is_shared=shared.is_shared)
        if chunk is None:
            return message, None if start.n_bytes is None else Payload(())
        if chunk.nbytes == n_bytes:
            return message, Payload((chunk,))
        self._unfinished = _Unfinished(start.number, n_bytes, message, [chunk], chunk.nbytes)
        return None

    def _in_region(self, start: MessageStart, n_bytes: int, ring: RingReader | None) -> RegionSlice:
        assert start.place is not None
        region, offset = divmod(start.place - FIRST_PLACE, 1 << REGION_BITS)
        if region not in self._regions:
            raise BrokenOff(f"region {region} was not offered to this incarnation")
        return self._regions[region].slice_at(offset, n_bytes, ring=ring, reading=start.reading)

    def _continue(self, continuation: Continuation, chunk: memoryview | None) -> Delivered | None:
        unfinished = self._unfinished
        if unfinished is None:
            raise BrokenOff("a chunk of a message that was never started")
        number, index = continuation.number, continuation.index
        if (number, index) != (unfinished.number, len(unfinished.pieces)):
            raise BrokenOff(f"chunk {index} of message {number} is out of order")
        _check_chunk(chunk, unfinished.n_bytes, index)
        assert chunk is not None, "an unfinished message expects a chunk of at least one byte"
        unfinished.pieces.append(chunk)
        unfinished.taken += chunk.nbytes
        if unfinished.taken < unfinished.n_bytes:
            return None
        self._unfinished = None
        return unfinished.message, Payload(unfinished.pieces)


def _check_chunk(chunk: memoryview | None, n_bytes: int, index: int) -> None:
    """Checks that a chunk has the size its index requires, and is absent where that is zero."""
    expected = chunk_size(n_bytes, index)
    if (chunk is not None) != (expected > 0) or (chunk is not None and chunk.nbytes != expected):
        found = "none" if chunk is None else f"{chunk.nbytes} bytes"
        raise MalformedFrames(f"chunk {index} of {n_bytes} bytes is {found}; it must have {expected} bytes")
