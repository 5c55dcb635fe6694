"""How a message looks on the wire: envelopes, each with a chunk of the payload beside it.

A large payload would hold up everything behind it and need its whole size at once; so it travels as chunks of
1 MiB, each under an envelope of its own:

    [Opening(number, n_bytes, message), first chunk]  [Following(number, 1), second chunk]  ...

Chunks are full but for the last one, so that `n_bytes` says how many frames there must be, and of which size.

Between two hosts of one machine the payload may lie in memory that they share, which was offered before, and
the envelope may then take another way, so that the numbers tell the order:

    [Offer(token, size, number)]   [Opening(number, n_bytes, message, place)]  ...

A connection that breaks loses what was on its way. The sender keeps messages until they are acknowledged by
`Got`, which comes once for many of them; if it does not come, `Sent` asks for it:

    [Got(number)]   [Got(number, again)]   [Sent(first, next)]

Nothing here knows sockets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Final, TypeAlias

import msgspec

from partita.engine.protocol.messages import Message, encode
from partita.engine.transport.payload import chunks

CHUNK_BYTES = 1 << 20
"""Size of every chunk but the last of a payload."""

MAX_MESSAGE_BYTES = CHUNK_BYTES
"""The largest encoded message. (A traceback or a directory of thousands of hosts fits.)"""

MAX_FRAME_BYTES = CHUNK_BYTES + 4096
"""No frame is larger: a chunk, or an envelope round the largest message, and what encryption adds."""

STREAM_BITS: Final = 32
"""Numbers of messages are `stream << STREAM_BITS` plus a count: a connection that is opened anew is a new,
higher stream, of which the first message has count 0."""

_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]


class Opening(msgspec.Struct, frozen=True, array_like=True, tag=0, forbid_unknown_fields=True, gc=False):
    """Begins a message: the sender's number for it, the payload's size (None: there is none), its bytes.

    `place` is where in the shared memory the payload lies (None: in the chunks).
    """

    number: _Count
    n_bytes: _Count | None
    message: bytes
    place: _Count | None = None


class Following(msgspec.Struct, frozen=True, array_like=True, tag=1, forbid_unknown_fields=True, gc=False):
    """Goes on with the message of this number: the chunk beside it is the one of this index."""

    number: _Count
    index: _Count


class Offer(msgspec.Struct, frozen=True, array_like=True, tag=2, forbid_unknown_fields=True, gc=False):
    """From now on payloads may lie in memory of this size, which was left at the doorway with this token.

    `number` is that of the message that follows: an offer that comes a second time is known by it.
    """

    token: bytes
    n_bytes: _Count
    number: _Count


class Got(msgspec.Struct, frozen=True, array_like=True, tag=3, forbid_unknown_fields=True, gc=False):
    """Acknowledges every message below this number. `again`: the one of this number is lost, so all from
    there on are to be sent again.
    """

    number: _Count
    again: bool = False


class Sent(msgspec.Struct, frozen=True, array_like=True, tag=4, forbid_unknown_fields=True, gc=False):
    """Nothing below `first` will be sent again. Where `next` is given, everything below that was sent before
    this envelope, and it is to be answered by `Got`.
    """

    first: _Count
    next: _Count | None = None


Envelope: TypeAlias = Opening | Following | Offer | Got | Sent


class MalformedFrames(ValueError):
    """Frames that are no part of a message."""


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Envelope] = msgspec.msgpack.Decoder(Envelope)


def frames(
    number: int, message: Message, payload: Sequence[memoryview] | None
) -> Iterator[tuple[bytes, memoryview | bytes | None]]:
    """The message as pairs of an envelope and a chunk (None where a message has no bytes beside it).

    Args:
        number: counts the messages of one connection.
        message: what to say.
        payload: flat views of its bytes, or None for a message without a payload.

    Raises:
        ValueError: the encoded message is larger than `MAX_MESSAGE_BYTES`. Raised before anything is yielded.
    """
    encoded = _encoded(message)
    if payload is None:
        yield _encoder.encode(Opening(number, None, encoded)), None
        return
    n_bytes = sum(view.nbytes for view in payload)
    pieces = chunks(payload, chunk_bytes=CHUNK_BYTES)
    yield _encoder.encode(Opening(number, n_bytes, encoded)), next(pieces, None)
    for index, piece in enumerate(pieces, start=1):
        yield _encoder.encode(Following(number, index)), piece


def placed(number: int, message: Message, n_bytes: int | None, place: int | None) -> bytes:
    """The one envelope of a message whose payload lies in shared memory, or that has no bytes beside it.

    Arguments and errors as of `frames`.
    """
    return _encoder.encode(Opening(number, n_bytes, _encoded(message), place))


def alone(envelope: Offer | Got | Sent) -> bytes:
    """The one frame of an envelope without a message."""
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
    """The envelope in these bytes.

    Raises:
        MalformedFrames: they are not exactly one envelope.
    """
    if len(data) > MAX_FRAME_BYTES:
        raise MalformedFrames(f"an envelope of {len(data)} bytes is larger than {MAX_FRAME_BYTES}")
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedFrames(f"{len(data)} bytes are not an envelope: {error}") from error


def chunk_size(n_bytes: int, index: int) -> int:
    """How many bytes chunk `index` of a payload of `n_bytes` has (0 beyond its end)."""
    return max(0, min(CHUNK_BYTES, n_bytes - index * CHUNK_BYTES))
