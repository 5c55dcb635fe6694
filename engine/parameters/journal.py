"""Journal of a batch method: all scalars that it received, so that an interrupted run can be repeated.

    FOLDER/journal      a header line that identifies the run, then one entry for each request

Entries are only appended. When `append` returns, the kernel has the entry, which survives the death of every
process; after `sync` it survives the machine. Bytes behind the last complete entry, from a crash, are cut
off.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from partita.engine.parameters.files import open_plain, read_plain, write_atomically
from partita.engine.parameters.formats import CheckpointError
from partita.engine.parameters.journal_format import (
    MAGIC,
    JournalEntry,
    JournalHeader,
    decode_entries,
    decode_header,
    encode_entry,
    encode_header,
    run_difference,
)

JOURNAL_BYTES: Final = 1 << 32  # largest journal that is read


def is_journal(path: Path) -> bool:
    """Returns whether a file starts as a journal does."""
    try:
        with open_plain(path) as file:
            return file.read(len(MAGIC)) == MAGIC
    except (OSError, ValueError):
        return False


@dataclass(eq=False)
class Journal:
    """Journal of one run, read once and appended to by one thread of the run that holds the folder's lock.

    Attributes:
        path: of the file.
        header: identity of the run.
        end: end of the complete entries (bytes).
        entries: those in the file when it was opened.
        cut: sentence about bytes behind the last complete entry, which will be cut off; "" if there are none.
        older: whether the file has an older format, in which nothing is appended to it.
    """

    path: Final[Path]
    header: Final[JournalHeader]
    end: int
    entries: Final[tuple[JournalEntry, ...]] = ()
    cut: Final[str] = ""
    older: bool = False
    _descriptor: int | None = field(default=None, init=False)
    _failed: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._next = len(self.entries)

    @classmethod
    def create(cls, path: Path, header: JournalHeader) -> Self:
        """Writes a journal without entries, which replaces an older one atomically.

        Raises:
            OSError: it could not be written; an older journal is unchanged.
        """
        data = encode_header(header)
        write_atomically(path, data)
        return cls(path, header, len(data))

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """Reads the journal of any run without changing it; None where there is no file.

        Raises:
            NewerFormat: a newer version wrote it.
            CheckpointError: its header is damaged.
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
            raise type(error)(f"the journal {path} {error}") from error
        entries, end = decode_entries(data, start)
        rest = len(data) - end
        cut = (
            f"the journal {path} is damaged or cut short behind request {len(entries)}; its last {rest} "
            f"bytes do not count"
        )
        older = not data.startswith(encode_header(header))
        return cls(path, header, end, entries, cut if rest else "", older)

    def check(self, expected: JournalHeader) -> None:
        """Raises CheckpointError where a run like this cannot continue the journal: says what differs."""
        why = run_difference(self.header, expected)
        if why is not None:
            raise CheckpointError(f"the journal {self.path} {why}")

    def __len__(self) -> int:
        return self._next

    def append(self, index: int, digest: int, scalars: tuple[float, ...]) -> None:
        """Appends an entry, which is written when this returns.

        Raises:
            OSError: it is not, and the journal accepts no more.
            ValueError: it is not the next one.
        """
        if index != self._next:
            raise ValueError(f"{self.path}: entry {index} was to follow entry {self._next - 1}")
        descriptor = self.claim()
        with self._no_retry():
            view = memoryview(encode_entry(JournalEntry(index, digest, scalars)))
            while view:
                view = view[os.write(descriptor, view) :]
        self._next += 1

    def sync(self) -> None:
        """Syncs every entry to disk. Raises OSError."""
        descriptor = self.claim()
        with self._no_retry():
            os.fdatasync(descriptor)

    def close(self) -> None:
        """Closes the journal's file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def claim(self) -> int:
        """Opens the file for appending, and cuts off incomplete entries; returns its descriptor.

        One of an older format is first replaced, atomically, by the same entries in today's.

        Raises:
            OSError: the file cannot be written.
        """
        if self._failed:
            raise OSError(f"{self.path} could not be written before; what it holds now is not known")
        if self._descriptor is None:
            with self._no_retry():
                if self.older:
                    data = encode_header(self.header) + b"".join(map(encode_entry, self.entries))
                    write_atomically(self.path, data)
                    self.end, self.older = len(data), False
                descriptor = os.open(self.path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
                os.ftruncate(descriptor, self.end)
                if self.cut:  # else a power loss may bring back what was cut off, behind new entries
                    os.fsync(descriptor)
                os.lseek(descriptor, 0, os.SEEK_END)
            self._descriptor = descriptor
        return self._descriptor

    @contextmanager
    def _no_retry(self) -> Iterator[None]:
        """Ends the journal after an error: the kernel may claim success for data that it has dropped."""
        try:
            yield
        except OSError as error:
            self._failed = True
            raise OSError(
                error.errno,
                f"the journal {self.path} cannot be written ({error.strerror or error}); what it holds is "
                "kept, so make room and resume",
            ) from error
