"""A journal as bytes: a line that says of which run it is, then one entry for each request.

Numbers are float64, so that what is repeated has the same bits. An entry has its length and its CRC-32 in
front, so that one that was cut short or changed is known from a whole one. It must not know the disk.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from partita.engine.parameters.files import difference, other_layers
from partita.engine.parameters.layout import Shape
from partita.engine.parameters.manifest import CheckpointError

FORMAT: Final = 1

MAGIC: Final = b"partita journal "
"""A journal begins with these bytes."""

_FRAME: Final = struct.Struct("<II")  # bytes of what follows, and their CRC-32 with that length before them
_KEY: Final = struct.Struct("<QQ")  # index, digest


class JournalHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Of which run a journal is. A run goes on from it only if the fields from `shapes` on are the same.

    Attributes:
        run: the run's id.
        first_checkpoint: checkpoints below this number are of earlier runs.
        start: the SHA-256 of the file of the parameters that the method began with.
        shapes: every parameter of the network.
        network: a text for each layer, by name: what shapes do not tell apart. Empty in journals that were
            written before there were any.
        precision: of the plan.
        method: the method as text, without what may change when a run goes on.
        data: a checksum of the arrays.
        examples, portion, stretch, batch, overlap, l2: how the function is cut and summed (`batch` and
            `overlap` in portions; None is all).
        seed: of the order of the examples.
        format: of journals; another one is refused.
    """

    run: str
    first_checkpoint: int
    start: str
    shapes: dict[str, Shape]
    precision: str
    method: str
    data: str
    examples: int
    portion: int
    stretch: int
    batch: int | None
    overlap: int
    l2: float
    seed: int
    network: dict[str, str] = {}
    format: int = FORMAT


_WORDS: Final[Mapping[str, str]] = {
    "method": "the method {}",
    "precision": "{}",
    "examples": "{} examples",
    "portion": "portions of {} examples",
    "stretch": "{} portions for each push",
    "batch": "batches of {} portions",
    "overlap": "batches that share {} portions",
    "l2": "an l2 of {}",
    "seed": "the seed {}",
}
"""How what differs is said, in the order in which it is looked for."""


def other_run(found: JournalHeader, expected: JournalHeader) -> str | None:
    """What keeps a run like the second from going on with a journal of the first, in words; None: nothing."""
    why = difference(found.shapes, expected.shapes) or other_layers(found.network, expected.network)
    if why is not None:
        return f"is of another network: {why}"
    for name, words in _WORDS.items():
        had, has = (_said(words, getattr(one, name)) for one in (found, expected))
        if had != has:
            return (
                f"is of a run with {had}, and this one has {has}; resume with the same, or give another "
                "folder"
            )
    if found.data != expected.data:
        return (
            "is of a run with other data: as many examples, with other numbers or in another order; resume "
            "with the same, or give another folder"
        )
    return None


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """A request that was answered."""

    index: int
    digest: int
    scalars: tuple[float, ...]


def _said(words: str, value: object) -> str:
    return "all portions in each batch" if value is None else words.format(value)


def _checksum(body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(len(body).to_bytes(4, "little")))


def encode_header(header: JournalHeader) -> bytes:
    """The first line."""
    text = msgspec.json.encode(header)
    return MAGIC + f"{zlib.crc32(text):08x} ".encode() + text + b"\n"


def decode_header(data: bytes) -> tuple[JournalHeader, int]:
    """What the first line says, and where it ends. Raises CheckpointError, which says what is wrong."""
    end = data.find(b"\n") + 1
    first = len(MAGIC) + 9
    text = data[first : end - 1]
    if not end or data[:first] != MAGIC + f"{zlib.crc32(text):08x} ".encode():
        raise CheckpointError("is damaged in its first line; train from the start, or give another folder")
    try:
        found = msgspec.json.decode(text, type=dict[str, object]).get("format")
        if found == FORMAT:
            return msgspec.json.decode(text, type=JournalHeader), end
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointError(f"does not say what it is ({error})") from error
    raise CheckpointError(f"has format {found}, and this version reads {FORMAT}")


def encode_entry(entry: JournalEntry) -> bytes:
    """One entry."""
    body = _KEY.pack(entry.index, entry.digest) + struct.pack(f"<{len(entry.scalars)}d", *entry.scalars)
    return _FRAME.pack(len(body), _checksum(body)) + body


def decode_entries(data: bytes, position: int) -> tuple[tuple[JournalEntry, ...], int]:
    """The whole entries from there on, and where they end."""
    found: list[JournalEntry] = []
    while position + _FRAME.size <= len(data):
        size, checksum = _FRAME.unpack_from(data, position)
        body = data[position + _FRAME.size : position + _FRAME.size + size]
        if len(body) < max(size, _KEY.size) or (size - _KEY.size) % 8 or _checksum(body) != checksum:
            break
        index, digest = _KEY.unpack_from(body)
        if index != len(found):
            break
        scalars = struct.unpack_from(f"<{(size - _KEY.size) // 8}d", body, _KEY.size)
        found.append(JournalEntry(index, digest, scalars))
        position += _FRAME.size + size
    return tuple(found), position
