"""Follows the stream of a run for a page: the state as of now, and for how long nothing has come."""

from __future__ import annotations

import time
from pathlib import Path

from partita.engine.watch.file import StreamReader
from partita.engine.watch.state import State


class Follower:
    """The file of a stream, and a clock."""

    def __init__(self, path: Path) -> None:
        """Opens the file. Raises OSError."""
        self._reader = StreamReader(path)
        self._last = time.monotonic()

    @property
    def state(self) -> State:
        """The state so far; another object after the file was thinned."""
        return self._reader.state

    def read(self) -> bool:
        """Takes the records that have come since, and returns whether there were any.

        Raises:
            OSError: the file cannot be read.
            MalformedRecord: it holds something else.
        """
        if not self._reader.read():
            return False
        self._last = time.monotonic()
        return True

    @property
    def silent_s(self) -> float:
        """Seconds since records came; 0 for a run that has ended."""
        return 0.0 if self.state.is_over else time.monotonic() - self._last

    @property
    def now_s(self) -> float:
        """Seconds of the run now: those of the newest record, and what has passed since it came."""
        return self.state.at_s + self.silent_s

    def close(self) -> None:
        """Ends the reading; the state stays."""
        self._reader.close()
