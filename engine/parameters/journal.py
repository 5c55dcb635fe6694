"""The journal of a batch method: every reply that it was given, so that a run can be repeated up to there.

    FOLDER/journal      a line that says of which run it is, then one entry for each request

It is only ever appended to. An entry is in the hands of the kernel before `append` returns, and survives the
death of every process; `sync` forces it to the disk, and it survives the machine. What a crash leaves behind
the last whole entry is cut off. Numbers are kept as float64, so that what is repeated has the same bits. It
must not know methods or messages: a request is known by a digest.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Self, TypeAlias

import msgspec

from partita.engine.parameters.files import difference, read_plain, write_atomically
from partita.engine.parameters.layout import Shape
from partita.engine.parameters.manifest import CheckpointError

FORMAT: Final = 1
JOURNAL_BYTES: Final = 1 << 32
"""A journal beyond this is not read."""

Durability: TypeAlias = Literal["process", "disk"]
"""When an entry is there to stay: when it is written (nothing is lost when processes die), or when it is on
disk (nor when the machine stops)."""

_MAGIC: Final = b"partita journal "
_FRAME: Final = struct.Struct("<II")  # bytes of what follows, and their CRC-32 with that length before them
_KEY: Final = struct.Struct("<QQ")  # index, digest


class JournalHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Of which run a journal is. A run goes on from it only if the fields from `shapes` on are the same.

    Attributes:
        run: the run's id.
        first_checkpoint: checkpoints below this number are of earlier runs.
        start: the SHA-256 of the file of the parameters that the method began with.
        shapes: every parameter of the network.
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


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """A request that was answered."""

    index: int
    digest: int
    scalars: tuple[float, ...]


class Journal:
    """The journal of one run, to be read once and appended to by one thread.

    Attributes:
        path: the file.
        header: of which run it is.
        entries: those that were there when it was opened.
        cut: what was found behind the last whole entry and will be cut off, as a sentence; "" is nothing.
    """

    def __init__(
        self,
        path: Path,
        header: JournalHeader,
        *,
        entries: tuple[JournalEntry, ...],
        end: int,
        cut: str = "",
        durability: Durability = "process",
    ) -> None:
        """Made by `create` and `open`. `end` is where the whole entries end, in bytes."""
        self.path: Final = path
        self.header: Final = header
        self.entries: Final = entries
        self.cut: Final = cut
        self._durability: Final = durability
        self._next = len(entries)
        self._end: Final = end
        self._descriptor: int | None = None
        self._failed = False

    @classmethod
    def create(cls, path: Path, header: JournalHeader, *, durability: Durability = "process") -> Self:
        """A journal without entries. It replaces one that is there, as a whole.

        Raises:
            OSError: it is not on disk; what was there before still is.
        """
        data = _encode_header(header)
        write_atomically(path, data)
        return cls(path, header, entries=(), end=len(data), durability=durability)

    @classmethod
    def read(cls, path: Path, *, durability: Durability = "process") -> Self | None:
        """The journal of whatever run is there; None where there is no file. Nothing is changed yet.

        Raises:
            CheckpointError: it does not say what it is.
        """
        try:
            data = read_plain(path, at_most=JOURNAL_BYTES)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise CheckpointError(
                f"the journal {path} cannot be read ({error}); train from the start, or give another folder"
            ) from error
        header, start = _decode_header(path, data)
        entries, end = _decode_entries(data, start)
        rest = len(data) - end
        cut = ""
        if rest:
            cut = (
                f"the journal {path} is damaged or cut short behind request {len(entries)}; its last {rest} "
                f"bytes do not count"
            )
        return cls(path, header, entries=entries, end=end, cut=cut, durability=durability)

    @classmethod
    def open(cls, path: Path, expected: JournalHeader, *, durability: Durability = "process") -> Self:
        """The journal of a run like this one, to go on with.

        Raises:
            CheckpointError: it is not there or damaged, or of another network, method or data: says what
                differs.
        """
        found = cls.read(path, durability=durability)
        if found is None:
            raise CheckpointError(f"there is no journal {path}; train from the start, or give another folder")
        found.check(expected)
        return found

    def check(self, expected: JournalHeader) -> None:
        """Raises CheckpointError where a run like this cannot go on from it: says what differs."""
        found = self.header
        why = difference(found.shapes, expected.shapes)
        if why is not None:
            raise CheckpointError(f"the journal {self.path} is of another network: {why}")
        for name, words in _WORDS.items():
            had, has = (_said(words, getattr(one, name)) for one in (found, expected))
            if had != has:
                raise CheckpointError(
                    f"the journal {self.path} is of a run with {had}, and this one has {has}; "
                    "resume with the same, or give another folder"
                )
        if found.data != expected.data:
            raise CheckpointError(
                f"the journal {self.path} is of a run with other data: as many examples, with other numbers "
                "or in another order; resume with the same, or give another folder"
            )

    def __len__(self) -> int:
        """How many entries there are now."""
        return self._next

    def append(self, index: int, digest: int, scalars: tuple[float, ...]) -> None:
        """Adds an entry, which is written (or on disk, by the mode) when this returns.

        Raises:
            OSError: it is not, and never will be: the journal takes no more.
            ValueError: it is not the next one.
        """
        if index != self._next:
            raise ValueError(f"{self.path}: entry {index} was to follow entry {self._next - 1}")
        body = _KEY.pack(index, digest) + struct.pack(f"<{len(scalars)}d", *scalars)
        frame = _FRAME.pack(len(body), _checksum(body))
        descriptor = self._open()
        with self._unless_it_fails():
            view = memoryview(frame + body)
            while view:
                view = view[os.write(descriptor, view) :]
            if self._durability == "disk":
                os.fdatasync(descriptor)
        self._next += 1

    def sync(self) -> None:
        """Forces every entry to the disk. Raises OSError."""
        descriptor = self._open()
        with self._unless_it_fails():
            os.fdatasync(descriptor)

    def close(self) -> None:
        """Lets go of the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _open(self) -> int:
        """The file, without what follows its last whole entry: only who writes cuts that off."""
        if self._failed:
            raise OSError(f"{self.path} could not be written before; what it holds now is not known")
        if self._descriptor is None:
            self._descriptor = os.open(self.path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            with self._unless_it_fails():
                os.ftruncate(self._descriptor, self._end)
                os.lseek(self._descriptor, 0, os.SEEK_END)
        return self._descriptor

    @contextmanager
    def _unless_it_fails(self) -> Iterator[None]:
        """What fails is not tried again: the kernel may then claim success for what it has dropped."""
        try:
            yield
        except OSError as error:
            self._failed = True
            raise OSError(
                error.errno,
                f"the journal {self.path} cannot be written ({error.strerror or error}); what it holds is "
                "kept, so make room and resume",
            ) from error


def _said(words: str, value: object) -> str:
    return "all portions in each batch" if value is None else words.format(value)


def _checksum(body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(len(body).to_bytes(4, "little")))


def _encode_header(header: JournalHeader) -> bytes:
    text = msgspec.json.encode(header)
    return _MAGIC + f"{zlib.crc32(text):08x} ".encode() + text + b"\n"


def _decode_header(path: Path, data: bytes) -> tuple[JournalHeader, int]:
    """The first line, and where it ends."""
    end = data.find(b"\n") + 1
    first = len(_MAGIC) + 9
    text = data[first : end - 1]
    if not end or data[:first] != _MAGIC + f"{zlib.crc32(text):08x} ".encode():
        raise CheckpointError(
            f"the journal {path} is damaged in its first line; train from the start, or give another folder"
        )
    try:
        found = msgspec.json.decode(text, type=dict[str, object]).get("format")
        if found == FORMAT:
            return msgspec.json.decode(text, type=JournalHeader), end
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointError(f"the journal {path} does not say what it is ({error})") from error
    raise CheckpointError(f"the journal {path} has format {found}, and this version reads {FORMAT}")


def _decode_entries(data: bytes, position: int) -> tuple[tuple[JournalEntry, ...], int]:
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
