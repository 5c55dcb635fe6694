"""Compiled kernels are kept on disk: the processes of the digits example compile each function once, and
nothing when it starts again.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

LISTENER = """
import os
from numba.core import event

class RecordCompilation(event.Listener):
    def on_start(self, found):
        with open(os.environ["COMPILED"], "a") as file:
            function = found.data["dispatcher"]
            file.write(f"{type(function).__name__} {function.py_func.__qualname__} {found.data['args']}\\n")

    def on_end(self, found):
        pass

event.register("numba:compile", RecordCompilation())
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_second_start_of_the_digits_example_compiles_nothing(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(LISTENER)
    first, second = (compiled_in_a_run(tmp_path, name) for name in ("first", "second"))
    assert second == [], f"compiled again: {second}"
    ours = [line for line in first if line.startswith("CompiledFunction ")]
    assert len(set(ours)) == len(ours), "several processes have compiled the same function"
    assert first != [], "a first start with an empty cache compiles, or nothing was counted"


def compiled_in_a_run(folder: Path, name: str) -> list[str]:
    """Functions that the processes of a run compile; the cache of both runs is the folder's."""
    compiled = folder / name
    compiled.touch()
    environment = os.environ | {
        "COMPILED": str(compiled),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "PYTHONPATH": str(folder),
    }
    command = [sys.executable, str(ROOT / "examples" / "digits.py")]
    subprocess.run(command, env=environment, cwd=folder, check=True, capture_output=True)
    return compiled.read_text().splitlines()
