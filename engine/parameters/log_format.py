"""Binary format of a segment of a shard's log: a header line, then one frame for each record.

A frame, and the payload in it, begin at a multiple of `ALIGN` bytes, so that numbers are read where they lie:

    head       mark, CRC-32 of the rest of the head, number, sizes, incarnation of the sender
    body       sender, message; then the payload
    trailer    CRC-32 of the head's checksum and the body

The length in a head is used only if its checksum is right; behind a damaged frame the next one is found by
its mark. Numbers count up by one.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from partita.engine.parameters.formats import CheckpointError, Upgrade, decode_any, newest

ALIGN: Final = 64
MAGIC: Final = b"partita log "
UPGRADES: Final[tuple[Upgrade, ...]] = ()
CHUNK_BYTES: Final = 1 << 20  # of which a checksum is computed, and which is then written

_MARK: Final = b"\x9a\x7a\x10\x6e"
_HEAD: Final = struct.Struct("<4sIQqIIH")
"""Mark, checksum, number, bytes of the payload (-1: none), incarnation, bytes of message and sender."""
_UNMARKED: Final = struct.Struct("<QqIIH")
_TRAILER: Final = struct.Struct("<I")


class SegmentHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Identity of a segment.

    Attributes:
        run: id of the run that writes it.
        shard: "shard K".
        shards: how many there are.
        incarnation: of the process that writes it.
        first: number of its first record.
        base: CRC-32 of the shard's parameters, where nothing is before its first record; else None.
        ranges: for each machine, its (start, stop) in the shard's vectors.
        precision: of the numbers.
        units_per_epoch: of the run: how the work that its pushes name is cut.
        compress: the compressor of its pushes, as text; "" where they are whole gradients.
        format: of segments.
    """

    run: str
    shard: str
    shards: int
    incarnation: int
    first: int
    base: int | None
    ranges: dict[int, tuple[int, int]]
    precision: str
    units_per_epoch: int
    compress: str = ""
    format: int = newest(UPGRADES)


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """A record as it is kept: the bytes of a message (MessagePack), and its payload (None: it has none)."""

    number: int
    sender: str
    incarnation: int
    message: bytes
    payload: Sequence[memoryview] | None

    @property
    def n_bytes(self) -> int:
        """Size of the payload."""
        return sum(piece.nbytes for piece in self.payload or ())


@dataclass(frozen=True, slots=True)
class SegmentContent:
    """The whole records of a segment, with ascending numbers, and the number of bytes behind the last one."""

    records: tuple[LoggedRequest, ...]
    rest: int


def _padding(n_bytes: int) -> int:
    return -n_bytes % ALIGN


def encode_header(header: SegmentHeader) -> bytes:
    """Returns the first bytes of a segment."""
    text = msgspec.json.encode(header)
    line = MAGIC + f"{zlib.crc32(text):08x} ".encode() + text + b"\n"
    return line + bytes(_padding(len(line)))


def decode_header(data: bytes | memoryview) -> tuple[SegmentHeader, int]:
    """Decodes the first bytes of a segment, and returns where they end. Raises CheckpointError."""
    line = bytes(data[: 1 << 16]).partition(b"\n")[0]
    start = len(MAGIC) + 9
    text = line[start:]
    if line[:start] != MAGIC + f"{zlib.crc32(text):08x} ".encode():
        raise CheckpointError("is damaged in its first line, or was never whole")
    try:
        header = decode_any(text, SegmentHeader, UPGRADES)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointError(f"does not say what it is ({error})") from error
    n_bytes = len(line) + 1
    return header, n_bytes + _padding(n_bytes)


def frame_of(record: LoggedRequest) -> Iterator[bytes | memoryview]:
    """Yields the bytes of a record's frame, in chunks whose checksum has just been computed."""
    sender, n_bytes = record.sender.encode(), -1 if record.payload is None else record.n_bytes
    fields = record.number, n_bytes, record.incarnation, len(record.message), len(sender)
    checksum = zlib.crc32(_UNMARKED.pack(*fields))
    text = sender + record.message
    start = _HEAD.pack(_MARK, checksum, *fields) + text
    checksum = zlib.crc32(text, checksum)
    yield start + bytes(_padding(len(start)))
    for piece in record.payload or ():
        for at in range(0, piece.nbytes, CHUNK_BYTES):
            chunk = piece[at : at + CHUNK_BYTES]
            checksum = zlib.crc32(chunk, checksum)
            yield chunk
    end = bytes(_padding(max(n_bytes, 0))) + _TRAILER.pack(checksum)
    yield end + bytes(_padding(_TRAILER.size))


def decode_records(data: memoryview, position: int) -> SegmentContent:
    """Decodes the whole records of a segment.

    Args:
        data: of the whole segment; payloads are views of it.
        position: behind the header.
    """
    found: list[LoggedRequest] = []
    start: int | None = position
    while start is not None:
        while (frame := _decode_frame(data, start)) is not None:
            if not found or frame[0].number > found[-1].number:
                found.append(frame[0])
            start = position = frame[1]
        start = _next_mark(data, start + ALIGN)
    return SegmentContent(tuple(found), len(data) - position)


def _decode_frame(data: memoryview, position: int) -> tuple[LoggedRequest, int] | None:
    """Decodes the frame at a position, and returns where it ends; None where there is no whole one."""
    if position + _HEAD.size > len(data):
        return None
    mark, checksum, *fields = _HEAD.unpack_from(data, position)
    if mark != _MARK or checksum != zlib.crc32(_UNMARKED.pack(*fields)):
        return None
    number, n_bytes, incarnation, of_message, of_sender = fields
    text = data[position + _HEAD.size :][: of_sender + of_message]
    at = position + _HEAD.size + len(text)
    at += _padding(at)
    end = at + max(n_bytes, 0)
    trailer = end + _padding(end)
    if trailer + _TRAILER.size > len(data):
        return None
    payload = data[at:end]
    if _TRAILER.unpack_from(data, trailer)[0] != zlib.crc32(payload, zlib.crc32(text, checksum)):
        return None
    sender, message = bytes(text[:of_sender]).decode(), bytes(text[of_sender:])
    pieces = None if n_bytes < 0 else (payload,) if n_bytes else ()
    return LoggedRequest(number, sender, incarnation, message, pieces), trailer + ALIGN


def _next_mark(data: memoryview, position: int) -> int | None:
    """Returns the next position at which a frame may begin."""
    for start in range(position, len(data), CHUNK_BYTES):
        chunk = bytes(data[start : start + CHUNK_BYTES])
        at = chunk.find(_MARK)
        while at >= 0 and at % ALIGN:
            at = chunk.find(_MARK, at + 1)
        if at >= 0:
            return start + at
    return None
