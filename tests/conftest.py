"""What holds for every test: it leaves nothing behind, and Hypothesis does not judge by the clock."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator

import pytest

from tests.draws import register_profiles
from tests.leaks import Census, mark_descendants, orphans_killed

register_profiles()


def pytest_configure(config: pytest.Config) -> None:
    """What is kept between runs (calibrations, compiled nodes) is the user's own: tests have a folder, which
    the workers of a run share.
    """
    for name in _OF_A_TERMINAL:
        os.environ.pop(name, None)
    if hasattr(config, "workerinput"):
        return  # a process of pytest-xdist inherits the folder
    folder = tempfile.TemporaryDirectory(prefix="partita-tests-")
    os.environ["XDG_CACHE_HOME"] = folder.name
    _KEPT.append(folder)  # until the interpreter ends


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
