"""Wire format: a message is a sequence of envelopes, each with a chunk of the payload.

A large payload in one frame would block everything behind it and need its whole size at once, so it is sent
in chunks of 1 MiB, each with an envelope:

    [MessageStart(number, n_bytes, message), first chunk]  [Continuation(number, 1), second chunk]  ...

All chunks but the last are full, so `n_bytes` determines the number of frames and their sizes.

Between hosts of one machine the payload may lie in shared memory that was offered before. Its envelope may
then take another channel, so the numbers give the order:

    [LinkOffer(token, size, number)]   [MessageStart(number, n_bytes, message, place)]  ...
    [RegionOffer(token, size, region)]

A payload of up to `INLINE_BYTES` is in the envelope itself:

    [MessageStart(number, n_bytes, message, None, payload)]

Between hosts of two machines, messages may take a stream link (`stream_link`) that was offered in the same
way:

    [StreamOffer(token, port, key, clear, number)]

A broken connection loses the frames in flight. The sender retains messages until an `Ack` arrives, one for
many messages, and requests a missing one with `SendWindow`:

    [Ack(number)]   [Ack(number, resend)]   [SendWindow(first, next)]

This module does not know sockets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Final, TypeAlias

import msgspec

from partita.engine.protocol.messages import Message, encode
from partita.engine.transport.payload import chunks

CHUNK_BYTES = 1 << 20  # size of every chunk but the last of a payload
INLINE_BYTES: Final = 4096
"""Largest payload in an envelope: copying it is faster than sharing memory, or than a second frame."""

MAX_MESSAGE_BYTES = CHUNK_BYTES
"""Largest encoded message. (A traceback or a directory of thousands of hosts fits.)"""

MAX_FRAME_BYTES = CHUNK_BYTES + INLINE_BYTES + 4096
"""Largest frame: a chunk, or an envelope around the largest message, and the overhead of encryption."""

STREAM_BITS: Final = 32
"""Message numbers are `stream << STREAM_BITS` plus a count: every reconnection starts a higher stream, whose
first message has count 0."""

_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]


class MessageStart(msgspec.Struct, frozen=True, array_like=True, tag=0, forbid_unknown_fields=True, gc=False):
    """First envelope of a message: its number, the size of its payload (None: no payload), its bytes.

    `place` is the payload's position in shared memory, and `payload` a small one itself (both None: it is
    sent in chunks). `reading` numbers the payloads in regions whose release the sender waits for.
    """

    number: _Count
    n_bytes: _Count | None
    message: bytes
    place: _Count | None = None
    payload: bytes | None = None
    reading: _Count | None = None


class Continuation(msgspec.Struct, frozen=True, array_like=True, tag=1, forbid_unknown_fields=True, gc=False):
    """Envelope of chunk `index` of the message with this number."""

    number: _Count
    index: _Count


class LinkOffer(msgspec.Struct, frozen=True, array_like=True, tag=2, forbid_unknown_fields=True, gc=False):
    """Offers shared memory of this size, passed to the rendezvous socket with this token.

    `number` is that of the following message; it identifies an offer that arrives twice.
    """

    token: bytes
    n_bytes: _Count
    number: _Count


class RegionOffer(msgspec.Struct, frozen=True, array_like=True, tag=6, forbid_unknown_fields=True, gc=False):
    """Offers memory of the sender, passed to the rendezvous socket with this token, as `region`."""

    token: bytes
    n_bytes: _Count
    region: _Count


class Ack(msgspec.Struct, frozen=True, array_like=True, tag=3, forbid_unknown_fields=True, gc=False):
    """Acknowledges every message below this number; `resend` requests retransmission from it on.

    `region` says that payloads in this region of the sender can be read.
    """

    number: _Count
    resend: bool = False
    region: _Count | None = None


class SendWindow(msgspec.Struct, frozen=True, array_like=True, tag=4, forbid_unknown_fields=True, gc=False):
    """States that nothing below `first` will be sent again.

    With `next`, everything below it was sent before this envelope, and an `Ack` is requested.
    """

    first: _Count
    next: _Count | None = None


class StreamOffer(msgspec.Struct, frozen=True, array_like=True, tag=5, forbid_unknown_fields=True, gc=False):
    """Offers a stream link: connect to this port of the sender, and send the token.

    `key` seals its records; `clear` says that payloads are not sealed. `number` is as in `LinkOffer`. Holds a
    secret: never print it.
    """

    token: bytes
    port: Annotated[int, msgspec.Meta(gt=0, lt=65536)]
    key: Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
    clear: bool
    number: _Count

    def __repr__(self) -> str:
        return f"StreamOffer(port={self.port}, clear={self.clear}, number={self.number})"


Envelope: TypeAlias = MessageStart | Continuation | LinkOffer | Ack | SendWindow | StreamOffer | RegionOffer


class MalformedFrames(ValueError):
    """Frames that are not part of a message."""


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Envelope] = msgspec.msgpack.Decoder(Envelope)


def frames(
    number: int, message: Message, payload: Sequence[memoryview] | None
) -> Iterator[tuple[bytes, memoryview | bytes | None]]:
    """Yields a message as pairs of an envelope and a chunk (None where there are no bytes).

    `number` counts the messages of a connection; `payload` is flat views of its bytes (None: no payload).

    Raises:
        ValueError: the encoded message is larger than `MAX_MESSAGE_BYTES`; raised before the first pair.
    """
    n_bytes = None if payload is None else sum(view.nbytes for view in payload)
    if payload is None or n_bytes is None or n_bytes == 0:
        yield encode_shared(number, message, n_bytes, None), None
        return
    if n_bytes <= INLINE_BYTES:
        yield encode_inline(number, message, n_bytes, payload), None
        return
    encoded = _encoded(message)
    pieces = chunks(payload, chunk_bytes=CHUNK_BYTES)
    yield _encoder.encode(MessageStart(number, n_bytes, encoded)), next(pieces, None)
    for index, piece in enumerate(pieces, start=1):
        yield _encoder.encode(Continuation(number, index)), piece


def encode_shared(
    number: int, message: Message, n_bytes: int | None, place: int | None, reading: int | None = None
) -> bytes:
    """Encodes a message whose payload lies in shared memory, or is empty; errors as `frames`."""
    return _encoder.encode(MessageStart(number, n_bytes, _encoded(message), place, None, reading))


def encode_inline(number: int, message: Message, n_bytes: int, payload: Sequence[memoryview]) -> bytes:
    """Encodes a message with a payload of 1 to `INLINE_BYTES` bytes in it; errors as `frames`."""
    return _encoder.encode(MessageStart(number, n_bytes, _encoded(message), None, b"".join(payload)))


def encode_control(envelope: LinkOffer | StreamOffer | RegionOffer | Ack | SendWindow) -> bytes:
    """Encodes an envelope without a message as one frame."""
    return _encoder.encode(envelope)


def _encoded(message: Message) -> bytes:
    encoded = encode(message)
    if len(encoded) > MAX_MESSAGE_BYTES:
        raise ValueError(
            f"{type(message).__name__} is {len(encoded)} bytes long and may have {MAX_MESSAGE_BYTES}; "
            "send what is large as its payload"
        )
    return encoded


def decode_envelope(data: bytes | memoryview) -> Envelope:
    """Decodes one envelope.

    Raises:
        MalformedFrames: the bytes are not exactly one envelope.
    """
    if len(data) > MAX_FRAME_BYTES:
        raise MalformedFrames(f"an envelope of {len(data)} bytes is larger than {MAX_FRAME_BYTES}")
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedFrames(f"{len(data)} bytes are not an envelope: {error}") from error


def chunk_size(n_bytes: int, index: int) -> int:
    """Returns the size of chunk `index` of a payload of `n_bytes` (0 beyond its end)."""
    return max(0, min(CHUNK_BYTES, n_bytes - index * CHUNK_BYTES))
