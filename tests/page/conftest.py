"""A server of the page in a process of its own, and Chromium."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


@contextmanager
def served(stream: Path, *options: str) -> Iterator[str]:
    """Serves a stream while the block lasts, and yields the address with its token."""
    command = [sys.executable, "-m", "partita.engine.page", str(stream), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        try:
            address = process.stdout.readline().strip()
            assert address.startswith("http://127.0.0.1:"), process.stderr.read()
            yield address
        finally:
            process.terminate()
            said = process.stderr.read()
    assert "token" not in said and "Traceback" not in said, said


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A browser without a window. While it is open, an event loop runs, and nothing can use `asyncio.run`."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed (extra browser)"
    )
    pytest.importorskip("nicegui", reason="NiceGUI is not installed (extra page)")
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("there is no Chromium on this machine")
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()
