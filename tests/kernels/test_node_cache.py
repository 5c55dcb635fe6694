"""Compiled functions of a user are kept: another process compiles nothing, and nobody else is trusted."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba.core import event

from partita.engine.kernels.nodes import generated
from partita.engine.kernels.nodes.generated import NotCompiled, ready
from partita.engine.numerics import code_files
from tests.kernels.compilations import Compilations

TEXT = """
import numpy as np

@compiled
def doubled(x):
    for i in range(len(x)):
        x[i] *= 2
"""


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The cache of a user who has none yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    code_files._warn_once.cache_clear()
    return tmp_path / "partita"


def compilations_of(text: str, warm: Callable[[dict[str, Any]], None] | None = None) -> int:
    """Number of times that a text is compiled, as in a new process."""
    generated._kept.cache_clear()
    with event.install_listener("numba:compile", Compilations()) as listener:
        names = ready(text, warm or (lambda names: names["doubled"](np.ones(1))))
        x = np.ones(3)
        names["doubled"](x)
    assert x.tolist() == [2, 2, 2]
    assert isinstance(listener, Compilations)
    return listener.count


def test_it_is_compiled_once(folder: Path) -> None:
    assert compilations_of(TEXT) == 1
    assert compilations_of(TEXT) == 0
    assert compilations_of(TEXT + "# a comment changes nothing\n") == 0
    assert compilations_of(TEXT.replace("*= 2", "*= 1 + 1 * 1.0")) == 1
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_files_that_are_broken_are_compiled_anew(folder: Path) -> None:
    compilations_of(TEXT)
    for kept in folder.glob("**/*.nb[ic]"):
        kept.write_bytes(b"half a fi")
    assert compilations_of(TEXT) >= 1


@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_a_folder_that_others_may_change_is_not_used(folder: Path, mode: int) -> None:
    folder.mkdir()
    folder.chmod(mode)
    with pytest.warns(RuntimeWarning, match=r"cannot be kept.*chmod 700"):
        assert compilations_of(TEXT) == 1
    assert not list(folder.iterdir())


def test_a_folder_of_somebody_else_is_not_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir(mode=0o700)
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.warns(RuntimeWarning, match=r"cannot be kept.*chmod 700"):
        assert compilations_of(TEXT) == 1
    assert not list(folder.iterdir())


def test_without_a_folder_it_is_compiled_for_the_process(folder: Path) -> None:
    folder.write_text("in the way")
    with pytest.warns(RuntimeWarning, match="every process compiles for itself"):
        assert compilations_of(TEXT) == 1


def test_what_cannot_be_compiled_says_so(folder: Path) -> None:
    wrong = TEXT.replace("*= 2", "*= no_such_name")
    with pytest.raises(NotCompiled) as caught:
        ready(wrong, lambda names: names["doubled"](np.ones(1)))
    assert "no_such_name" in str(caught.value.__cause__)


SCRIPT = """
import sys
sys.path.insert(0, {root!r})
from numba.core import event
from partita.layers import Edges, Node, Patch, per_edge
from tests.kernels.cases import case, play
from tests.kernels.compilations import Compilations

def weighs(incoming, weight):
    return (weight * incoming).sum()

def weighs_errors(incoming, weight, state, error):
    return error * weight, error * incoming

def halves(incoming):
    x = incoming[0]
    while x > 1:
        x /= 2
    return x

def halves_errors(incoming, state, error):
    return (error * incoming,)

LAYERS = (
    Node(Patch(2), weighs, weighs_errors, (("weight", per_edge()),)),
    Node(Edges([(0, 0), (5, 1)], nodes=2), weighs, weighs_errors, (("weight", per_edge()),)),
    Node(Patch(2), halves, halves_errors),
)
with event.install_listener("numba:compile", Compilations()) as listener:
    for layer in LAYERS:
        play(case(layer, (3, 3, 1), batch=2))
print(listener.count)
"""


@pytest.mark.slow
def test_a_second_process_compiles_nothing(folder: Path, tmp_path: Path) -> None:
    script = tmp_path / "nodes.py"
    script.write_text(SCRIPT.format(root=str(Path(__file__).parents[2])))

    def counted() -> int:
        done = subprocess.run(
            [sys.executable, script], check=True, capture_output=True, text=True, timeout=280
        )
        return int(done.stdout)

    assert counted() > 0
    assert counted() == 0


@pytest.mark.slow
def test_processes_may_write_at_the_same_time(folder: Path, tmp_path: Path) -> None:
    script = (
        "from numba import njit\nfrom partita.engine.kernels.nodes.generated import ready\nimport numpy\n"
        f"names = ready({TEXT!r}, lambda names: names['doubled'](numpy.ones(1)))\n"
        "x = numpy.ones(2)\nnames['doubled'](x)\nprint(x.sum())\n"
    )
    both = [
        subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    assert [process.communicate(timeout=280)[0] for process in both] == ["4.0\n", "4.0\n"]
    assert [path.suffix for path in (folder / "code").iterdir() if path.name != "swept"] == [".nbc"]
    assert compilations_of(TEXT) == 0
