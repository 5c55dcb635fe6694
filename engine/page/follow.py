"""Reads a stream of records as it grows, and keeps the state that follows from it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from partita.engine.watch.records import MalformedRecord, decode
from partita.engine.watch.state import State

_AT_ONCE: Final = 8 << 20
"""Bytes that are read before anything else is done."""


class Follower:
    """Follows the file of a stream, which may not be there yet."""

    def __init__(self, path: Path) -> None:
        """Follows a file from its beginning."""
        self.path, self.state = path, State()
        self.skipped = 0
        self._offset, self._rest = 0, b""
        self._last = time.monotonic()

    def read(self) -> bool:
        """Takes the records that have come since, and returns whether there were any.

        Lines that are no records are counted in `skipped`. A file that has become shorter is another run's,
        and begins anew.

        Raises:
            OSError: the file cannot be read.
        """
        try:
            size = self.path.stat().st_size
        except FileNotFoundError:
            return False
        if size < self._offset:
            self._offset, self._rest = 0, b""
            self.state = State()
        if size == self._offset:
            return False
        with self.path.open("rb") as file:
            file.seek(self._offset)
            while part := file.read(_AT_ONCE):
                self._offset += len(part)
                *lines, self._rest = (self._rest + part).split(b"\n")
                for line in lines:
                    self._take(line)
        self._last = time.monotonic()
        return True

    def _take(self, line: bytes) -> None:
        if not line.strip():
            return
        try:
            self.state.add(decode(line))
        except MalformedRecord:
            self.skipped += 1

    @property
    def silent_s(self) -> float:
        """Seconds since records came; 0 for a run that has ended."""
        return 0.0 if self.state.is_over else time.monotonic() - self._last

    @property
    def now_s(self) -> float:
        """Seconds of the run now: those of the newest record, and what has passed since it came."""
        return self.state.at_s + self.silent_s
