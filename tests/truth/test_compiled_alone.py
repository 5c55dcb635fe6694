"""Functions that processes compile separately and share by the cache compute what NumPy does in float64."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.truth.symbols import audit

ROOT = Path(__file__).resolve().parents[2]
EACH = [f"local:{name}" for name in ("tanh", "relu", "linear")]
EACH += [f"conv:{name}" for name in ("relu", "linear", "tanh", "sigmoid")]


BESIDE = "local:relu+conv:linear"


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a cache that was empty, and a log of what was compiled into it."""
    folder = tmp_path_factory.mktemp("filled")
    done = run(folder, "pictures", "log", *EACH, BESIDE)
    (folder / "failure").write_text(done.stderr if done.returncode else "")
    return folder


def run(
    folder: Path, module: str, log: str, *arguments: str, **more: str
) -> subprocess.CompletedProcess[str]:
    """Runs a module of this package over the cache of a folder."""
    return subprocess.run(
        [sys.executable, "-m", f"tests.truth.{module}", str(folder / log), *arguments],
        cwd=ROOT,
        env={**os.environ, "XDG_CACHE_HOME": str(folder), **more},
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.mark.slow
def test_layers_compiled_one_in_each_process_are_right_together(filled: Path) -> None:
    assert (filled / "failure").read_text() == ""


@pytest.mark.slow
def test_no_two_functions_have_one_symbol(filled: Path) -> None:
    audit(filled / "partita" / "code", filled / "log")


@pytest.mark.slow
def test_a_second_checkout_compiles_nothing(filled: Path, tmp_path: Path) -> None:
    (tmp_path / "partita").mkdir()
    for room in ("layers", "partitioner", "engine"):
        (tmp_path / "partita" / room).symlink_to(ROOT / room)
    done = run(filled, "pictures", "log of the second", *EACH[:1], BESIDE, PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(tmp_path)), "the engine is not that of the second checkout"
    assert not (filled / "log of the second").exists(), "it has compiled something"


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [0, 1])
def test_every_layer_is_right_however_the_cache_was_filled(tmp_path: Path, seed: int) -> None:
    for one in range(4):
        done = run(tmp_path, "every_layer", "log", str(100 * seed + one), "8")
        assert done.returncode == 0, done.stderr
    done = run(tmp_path, "every_layer", "log", str(100 * seed + 99), "100")
    assert done.returncode == 0, done.stderr
    audit(tmp_path / "partita" / "code", tmp_path / "log")
