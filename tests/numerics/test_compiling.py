"""One process compiles a function, others wait and load it; files come and go without harm."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from partita.engine.numerics import code_files

AT_THE_SAME_TIME = """
import os
import numpy as np
from numba.core import event
from partita.engine.numerics import compiled
from partita.engine.kernels.products import tiles
from partita.engine.kernels.tiles import vector_products

class Printer(event.Listener):
    def on_start(self, found):
        function = found.data["dispatcher"]
        if type(function).__name__ == "CompiledFunction":
            os.write(1, f"{function.py_func.__name__} {found.data['args']}\\n".encode())

    def on_end(self, found):
        pass

waits, goes = os.pipe()
children = []
for _ in range(4):
    children.append(os.fork())
    if not children[-1]:
        os.close(goes)
        os.read(waits, 1)
        event.register("numba:compile", Printer())
        a, b, out = np.ones((3, 2)), np.full((2, 5), 2.0), np.zeros(15)
        tiles._rows(out, a.reshape(-1), b.reshape(-1), (2, 1, 5), (0, 3), (2, 5), False)
        os._exit(0 if (out == 4).all() else 1)
os.close(waits)
os.close(goes)
assert all(os.waitpid(child, 0)[1] == 0 for child in children), "a product is wrong"
"""


@pytest.mark.slow
def test_each_function_is_compiled_by_one_of_many_processes(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", AT_THE_SAME_TIME],
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    compiled = done.stdout.splitlines()
    assert "_multiply_tile" in done.stdout and "_rows" in done.stdout
    assert len(set(compiled)) == len(compiled), "some function was compiled by several processes"
    assert {path.suffix for path in (tmp_path / "partita" / "code").iterdir()} == {".nbc", ""}


def test_what_nothing_has_read_for_weeks_is_removed(tmp_path: Path) -> None:
    old, used, half = (code_files.path_of(tmp_path, "function", key) for key in ("old", "used", "half"))
    for path in (old, used):
        code_files.write(path, b"code")
    left = half.with_suffix(".tmp")
    left.write_bytes(b"half")
    for path in (old, used, left, tmp_path / "swept"):
        os.utime(path, (0, 0))
    assert code_files.read(used) == b"code"
    code_files.write(half, b"code")
    assert sorted(tmp_path.iterdir()) == sorted([half, used, tmp_path / "swept"])


def test_a_broken_file_counts_as_missing(tmp_path: Path) -> None:
    path = code_files.path_of(tmp_path, "_loops.<locals>.finish", "key")
    assert path.name == "_loops..locals..finish-key.nbc"
    assert code_files.read(path) is None
    code_files.write(path, b"code")
    for broken in (b"", path.read_bytes()[:-1], path.read_bytes()[:-1] + b"x"):
        path.write_bytes(broken)
        assert code_files.read(path) is None


def test_a_disk_that_fails_is_reported_once(tmp_path: Path) -> None:
    code_files._warn_once.cache_clear()
    with pytest.warns(RuntimeWarning, match="compiled again in every process.*No such file"):
        code_files.write(tmp_path / "missing" / "function.nbc", b"code")
    code_files.write(tmp_path / "missing" / "function.nbc", b"code")
