"""The file of a stream: records as lines, written on a thread of its own, and read while it grows.

A line is written at once, so another process can follow. The last line of a file may be torn, by a crash or
because it is being written. A file has a bounded size: when it exceeds `MOST_BYTES`, it is replaced by one in
which old records are thinned, those of sampled steps first, and a reader begins anew with that.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Final, TypeAlias

from partita.engine.watch.records import Record, decode, encode
from partita.engine.watch.state import State

MOST_BYTES: Final = 64 << 20
"""Size of a file at which old records are thinned, to half of it."""

NAME: Final = "records-{}.jsonl"
"""File name of the stream of a run in the folder of its checkpoints, by its number there."""

_NEWEST: Final = 48
"""Newest records of each kind that are never thinned."""

_THINNED: Final = ("SampledStep", "Exchanges", "Memory", "Waits", "Progress", "Validation", "Event", "Hosts")
"""Kinds of records in the order in which they are thinned."""

Made: TypeAlias = Callable[[], Iterable[Record]]
"""Makes records on the thread that writes them: for what takes long."""


class StreamWriter:
    """Appends records to a new file. `write` returns at once, from any thread."""

    def __init__(self, path: Path, *, most_bytes: int = MOST_BYTES) -> None:
        """Creates the file, and the thread.

        Args:
            path: of the file, which must not exist.
            most_bytes: its largest size.

        Raises:
            OSError: the file cannot be created.
        """
        self.path: Final = path
        self._most: Final = most_bytes
        self._limit = most_bytes  # the size at which old records are thinned next
        self._file = path.open("xb", buffering=0)
        self._size = 0
        self._waiting: Final[SimpleQueue[Record | Made | None]] = SimpleQueue()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="records", daemon=True)
        self._thread.start()

    def write(self, record: Record | Made) -> None:
        """Appends a record, or those that a function makes, after all earlier ones."""
        self._waiting.put(record)

    @property
    def error(self) -> BaseException | None:
        """The error that has ended the writing; None while all is written. The run goes on without."""
        return self._error

    def close(self) -> None:
        """Writes what waits, and ends the thread."""
        self._waiting.put(None)
        self._thread.join()
        self._file.close()

    def _work(self) -> None:
        while (found := self._waiting.get()) is not None:
            if self._error is not None:
                continue
            try:
                self._append(found)
            except Exception as error:  # noqa: BLE001 - shown to the user; the run does not depend on it
                self._error = error

    def _append(self, found: Record | Made) -> None:
        records = found() if callable(found) else (found,)
        line = b"".join(map(encode, records))
        if self._size and self._size + len(line) > self._limit:
            self._thin()
        self._file.write(line)
        self._size += len(line)

    def _thin(self) -> None:
        lines = thinned(self.path.read_bytes().splitlines(keepends=True), self._most // 2)
        beside = self.path.with_suffix(".thinned")
        beside.write_bytes(b"".join(lines))
        os.replace(beside, self.path)
        self._file.close()
        self._file = self.path.open("ab", buffering=0)
        self._size = sum(map(len, lines))
        self._limit = max(self._most, 2 * self._size)  # where even the newest take more than half


def thinned(lines: Sequence[bytes], most_bytes: int) -> list[bytes]:
    """Leaves out every second old record, kind by kind, until the others fit, as far as that is possible.

    The first record, those of kinds that are written once, and the newest ones of each kind stay.
    """
    kept: list[bytes | None] = list(lines)
    size = sum(map(len, lines))
    for kind in _THINNED:
        start = b'{"type":"%s"' % kind.encode()
        places = [n for n, line in enumerate(lines) if line.startswith(start)]
        old = places[:-_NEWEST]
        while size > most_bytes and old:
            for n in old[::2]:
                size -= len(lines[n])
                kept[n] = None
            old = old[1::2]
    return [line for line in kept if line is not None]


class StreamReader:
    """Follows a file that may still grow.

    Attributes:
        state: folded from all records so far. A new object when the file was thinned.
    """

    def __init__(self, path: str | Path) -> None:
        """Opens the file, and reads nothing yet. Raises OSError."""
        self.state = State()
        self._path = Path(path)
        self._file = self._path.open("rb")
        self._rest = b""

    def read(self) -> list[Record]:
        """Returns the records since the last call, and adds them to the state.

        Where the file was thinned meanwhile, these are all records, and `state` begins anew.

        Raises:
            MalformedRecord: a line is none, or of a newer version.
        """
        if self._is_replaced():
            self._file.close()
            self._file = self._path.open("rb")
            self.state, self._rest = State(), b""
        *lines, self._rest = (self._rest + self._file.read()).split(b"\n")
        records = [decode(line) for line in lines if line]
        for record in records:
            self.state.add(record)
        return records

    def _is_replaced(self) -> bool:
        try:
            there = self._path.stat()
        except FileNotFoundError:
            return False  # it is kept by the one that reads it
        own = os.fstat(self._file.fileno())
        return (there.st_ino, there.st_dev) != (own.st_ino, own.st_dev)

    def close(self) -> None:
        """Closes the file, which may still be written to by others."""
        self._file.close()


def read_stream(path: str | Path) -> list[Record]:
    """Returns all records of a file; a torn last line is left out.

    Raises:
        OSError: the file cannot be read.
        MalformedRecord: it holds something else.
    """
    reader = StreamReader(path)
    try:
        return reader.read()
    finally:
        reader.close()


def next_path(folder: Path) -> Path:
    """Returns the file for the next run in a folder."""
    return folder / NAME.format(_newest(folder) + 1)


def newest_path(place: str | Path) -> Path:
    """Returns the file of the newest run in a folder, or the file itself.

    Raises:
        ValueError: there is none.
    """
    path = Path(place)
    if path.is_file():
        return path
    number = _newest(path)
    if not number:
        raise ValueError(
            f"{path} has no records of a run; give the folder of checkpoints of a run that was started with "
            "watch=True (--watch), or the file that it names"
        )
    return path / NAME.format(number)


def _newest(folder: Path) -> int:
    before, after = NAME.split("{}")
    found = (path.name[len(before) : -len(after)] for path in folder.glob(NAME.format("*")))
    return max((int(number) for number in found if number.isdigit()), default=0)
