"""Fixtures of every test: leak checks, and Hypothesis without deadlines."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from platformdirs import user_cache_path

from tests.draws import register_profiles
from tests.leaks import Census, mark_descendants, orphans_killed

register_profiles()
pytest.register_assert_rewrite("tests.properties")


def pytest_configure(config: pytest.Config) -> None:
    """Gives the tests a cache folder of their own, which the workers of a run share: what a user keeps, such
    as a calibration, decides nothing here.
    """
    for name in _OF_A_TERMINAL:
        os.environ.pop(name, None)
    os.environ["TERM"] = "xterm"  # on a dumb one, nothing is live
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # begun in the background of a shell
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(config, "workerinput"):
        return  # a process of pytest-xdist inherits the folder
    folder = tempfile.TemporaryDirectory(prefix="partita-tests-")
    _share_code(Path(folder.name))
    os.environ["XDG_CACHE_HOME"] = folder.name
    _KEPT.append(folder)  # until the interpreter ends


def _share_code(caches: Path) -> None:
    """Keeps machine code from run to run, in `partita-tests` beside the user's own caches: a file's name
    follows from its content, and whoever writes at the same time writes the same. With XDG_CACHE_HOME at an
    empty folder, everything is compiled.
    """
    kept = user_cache_path("partita-tests", appauthor=False) / "code"
    try:
        kept.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return  # no home, or none that can be written to
    (caches / "partita").mkdir(mode=0o700)
    (caches / "partita" / "code").symlink_to(kept)


_OF_A_TERMINAL = (
    "COLUMNS",
    "LINES",
    "NO_COLOR",
    "FORCE_COLOR",
    "CLICOLOR",
    "CLICOLOR_FORCE",
    "TTY_COMPATIBLE",
)
"""Variables of the caller's terminal that would change what commands print."""

_KEPT: list[tempfile.TemporaryDirectory[str]] = []


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Fails a test that leaves a thread, a child process, a ZeroMQ socket or a shared-memory segment.

    What fixtures of a wider scope hold was there before, and is not counted.
    """
    before = Census.take()
    yield
    left = before.what_is_new(settle_s=5.0)
    if left:
        pytest.fail("left behind: " + "; ".join(left), pytrace=False)


@pytest.fixture(autouse=True, scope="session")
def no_orphans() -> Iterator[None]:
    """Fails the session if a process that it started outlives it, even one whose own parent is gone."""
    mark = mark_descendants()
    yield
    left = orphans_killed(mark)
    if left:
        pytest.fail("outlived their tests: " + "; ".join(left), pytrace=False)
