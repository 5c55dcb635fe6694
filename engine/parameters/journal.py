"""The journal of a batch method: every reply that it was given, so that a run can be repeated up to there.

    FOLDER/journal      a line that says of which run it is, then one entry for each request

It is only ever appended to. An entry is in the hands of the kernel before `append` returns, and survives the
death of every process; `sync` forces it to the disk, and it survives the machine. What a crash leaves behind
the last whole entry is cut off. Numbers are kept as float64, so that what is repeated has the same bits. It
must not know methods or messages: a request is known by a digest.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal, Self, TypeAlias

from partita.engine.parameters.files import open_plain, read_plain, write_atomically
from partita.engine.parameters.journal_format import (
    MAGIC,
    JournalEntry,
    JournalHeader,
    decode_entries,
    decode_header,
    encode_entry,
    encode_header,
    other_run,
)
from partita.engine.parameters.manifest import CheckpointError

JOURNAL_BYTES: Final = 1 << 32
"""A journal beyond this is not read."""

Durability: TypeAlias = Literal["process", "disk"]
"""When an entry is there to stay: when it is written (nothing is lost when processes die), or when it is on
disk (nor when the machine stops)."""


def is_journal(path: Path) -> bool:
    """Whether a run wrote this file, as far as its first bytes say."""
    try:
        with open_plain(path) as file:
            return file.read(len(MAGIC)) == MAGIC
    except (OSError, ValueError):
        return False


class Journal:
    """The journal of one run, to be read once and appended to by one thread of one run, which holds the lock
    of the folder (`folder_lock`).

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
        data = encode_header(header)
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
        try:
            header, start = decode_header(data)
        except CheckpointError as error:
            raise CheckpointError(f"the journal {path} {error}") from error
        entries, end = decode_entries(data, start)
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
        why = other_run(self.header, expected)
        if why is not None:
            raise CheckpointError(f"the journal {self.path} {why}")

    def claim(self) -> None:
        """Cuts off what is behind the last whole entry. Raises OSError where the file cannot be written."""
        self._open()

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
        descriptor = self._open()
        with self._unless_it_fails():
            view = memoryview(encode_entry(JournalEntry(index, digest, scalars)))
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
            with self._unless_it_fails():
                descriptor = os.open(self.path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
                os.ftruncate(descriptor, self._end)
                os.lseek(descriptor, 0, os.SEEK_END)
            self._descriptor = descriptor
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
