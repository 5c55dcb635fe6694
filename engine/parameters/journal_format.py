"""Binary format of a journal: a header line that identifies the run, then one entry for each request.

Numbers are float64, so that a repetition has the same bits. An entry starts with its length and its CRC-32,
which reveal entries that are cut short or changed.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from partita.engine.parameters.files import layer_difference, shape_difference
from partita.engine.parameters.formats import (
    CheckpointError,
    Fields,
    Upgrade,
    decode_any,
    newest,
    renamed,
)
from partita.engine.parameters.layout import Shape

MAGIC: Final = b"partita journal "  # first bytes of a journal
_FRAME: Final = struct.Struct("<II")  # bytes of the body, and the CRC-32 of that length and the body
_KEY: Final = struct.Struct("<QQ")  # index, digest


def _header_2(fields: Fields) -> Fields:
    return renamed(fields, {"stretch": "unit_size"})


HEADER_UPGRADES: Final[tuple[Upgrade, ...]] = (_header_2,)
"""Entries are the same in all formats."""


class JournalHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Identity of a journal's run. Another run continues it only if the fields from `shapes` on are the same.

    Attributes:
        run: the run's id.
        first_checkpoint: checkpoints below this number are of earlier runs.
        start: SHA-256 of the file of the initial parameters.
        shapes: of every parameter of the network.
        network: a text for each layer, by name, for what shapes do not distinguish; empty in older files.
        precision: of the plan.
        method: as text, without what may change when a run continues.
        data: checksum of the arrays.
        examples, portion, unit_size, batch, overlap, l2: how the function is cut and summed (`unit_size`,
            `batch` and `overlap` in portions; `batch` None is all).
        seed: of the order of the examples.
        format: of journals.
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
    unit_size: int
    batch: int | None
    overlap: int
    l2: float
    seed: int
    network: dict[str, str] = {}
    format: int = newest(HEADER_UPGRADES)


_WORDS: Final[Mapping[str, str]] = {
    "method": "the method {}",
    "precision": "{}",
    "examples": "{} examples",
    "portion": "portions of {} examples",
    "unit_size": "{} portions for each push",
    "batch": "batches of {} portions",
    "overlap": "batches that share {} portions",
    "l2": "an l2 of {}",
    "seed": "the seed {}",
}
"""Descriptions of the fields, in the order in which they are compared."""


def run_difference(found: JournalHeader, expected: JournalHeader) -> str | None:
    """Describes why a run like the second cannot continue a journal of the first; None: it can."""
    why = shape_difference(found.shapes, expected.shapes) or layer_difference(found.network, expected.network)
    if why is not None:
        return f"is of another network: {why}"
    for name, words in _WORDS.items():
        values = (getattr(header, name) for header in (found, expected))
        had, has = ("all portions in each batch" if v is None else words.format(v) for v in values)
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
    """A request and the scalars that answered it; `digest` identifies the request."""

    index: int
    digest: int
    scalars: tuple[float, ...]


def _checksum(body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(len(body).to_bytes(4, "little")))


def encode_header(header: JournalHeader) -> bytes:
    """Returns the first line of a journal."""
    text = msgspec.json.encode(header)
    return MAGIC + f"{zlib.crc32(text):08x} ".encode() + text + b"\n"


def decode_header(data: bytes) -> tuple[JournalHeader, int]:
    """Decodes the first line, of any known format, and returns where it ends.

    Raises:
        NewerFormat: a newer version wrote it.
        CheckpointError: it is damaged.
    """
    end = data.find(b"\n") + 1
    first = len(MAGIC) + 9
    text = data[first : end - 1]
    if not end or data[:first] != MAGIC + f"{zlib.crc32(text):08x} ".encode():
        raise CheckpointError("is damaged in its first line; train from the start, or give another folder")
    try:
        return decode_any(text, JournalHeader, HEADER_UPGRADES), end
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointError(f"does not say what it is ({error})") from error


def encode_entry(entry: JournalEntry) -> bytes:
    """Returns the bytes of an entry."""
    body = _KEY.pack(entry.index, entry.digest) + struct.pack(f"<{len(entry.scalars)}d", *entry.scalars)
    return _FRAME.pack(len(body), _checksum(body)) + body


def decode_entries(data: bytes, position: int) -> tuple[tuple[JournalEntry, ...], int]:
    """Decodes the complete entries from a position on, and returns where they end."""
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
