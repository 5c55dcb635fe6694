"""The live page of a run, as the run sees it: a process that is started, and waited for at the end.

The process reads the records that the run writes (`run/watched.py`), so whoever looks costs the run nothing.
It is found by its name, because pages are made in a room above this one.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SERVER: Final = "partita.engine.page"
"""Package that is run as the server."""
_NEEDS: Final = ("nicegui", "uvicorn", "fastapi")
_CLOSES_S: Final = 20.0
"""Seconds that the server has to keep the page when the run has ended."""


def _missing() -> list[str]:
    """Returns the libraries that the page needs and that are not installed."""
    return [name for name in _NEEDS if importlib.util.find_spec(name) is None]


def has_page() -> bool:
    """Returns whether all libraries that the page needs are installed."""
    return not _missing()


def check_page() -> None:
    """Raises ImportError where a library that the page needs is not installed."""
    missing = _missing()
    if missing:
        raise ImportError(f"the live page needs {', '.join(missing)}; run: pip install 'partita[page]'")


@dataclass(frozen=True)
class PageOptions:
    """Settings of the page: the file in which it is kept at the end; None for one beside the records."""

    save: Path | None = None


class LivePage:
    """The server of one run's page."""

    def __init__(
        self, stream: Path, *, save: Path | None, say: Callable[[str], None], command: Sequence[str] = ()
    ) -> None:
        """Starts the process, and does not wait for it.

        Args:
            stream: file of the run's records.
            save: file of the page that is kept at the end; beside the records if not given.
            say: shows a line, from any thread.
            command: starts the server, for tests.

        Raises:
            ImportError: the extra `page` is not installed.
        """
        check_page()
        self.kept: Final = stream.with_suffix(".html") if save is None else save
        self._say = say
        options = (str(stream), "--save", str(self.kept), "--until-pid", str(os.getpid()))
        self._process = subprocess.Popen(
            [*(command or (sys.executable, "-m", SERVER)), *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C ends the run, and the run's end ends the page
        )
        self._thread = threading.Thread(target=self._announce, name="live page", daemon=True)
        self._thread.start()

    def _announce(self) -> None:
        """Shows what the server prints: first of all its address."""
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._say(f"page of this run: {line.strip()}")

    def close(self) -> None:
        """Waits until the server has kept the page of the ended run; ends it by force if it hangs."""
        try:
            code = self._process.wait(_CLOSES_S)
        except subprocess.TimeoutExpired:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_CLOSES_S / 4)
            self._process.kill()
            code = self._process.wait()
        self._thread.join()
        self._say(f"page kept: {self.kept}" if code == 0 else f"the live page has ended with code {code}")
