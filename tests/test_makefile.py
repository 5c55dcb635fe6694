"""The Makefile, with a Python that only writes down what it is asked for."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PYTHON = """#!/bin/sh
case "$*" in
    -c*) ;;
    "-m venv .venv") echo venv >> asked; mkdir -p .venv/bin; cp fake .venv/bin/python ;;
    *"pip install"*) echo "install ${*##*-e }" >> asked ;;
    *) echo "test" >> asked ;;
esac
"""


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL"):  # of the make that runs the tests
        monkeypatch.delenv(name, raising=False)
    for name in ("Makefile", "pyproject.toml", "setup.py", "constraints.txt"):
        shutil.copyfile(ROOT / name, tmp_path / name)
    (tmp_path / "fake").write_text(PYTHON)
    (tmp_path / "fake").chmod(0o755)
    return tmp_path


@pytest.mark.skipif(not (shutil.which("make") and shutil.which("flock")), reason="needs make and flock")
def test_two_makes_at_once_install_once(checkout: Path) -> None:
    make = ["make", "--silent", "test", "PYTHON=./fake"]
    both = [subprocess.Popen(make, cwd=checkout) for _ in range(2)]
    assert [process.wait(timeout=280) for process in both] == [0, 0]
    asked = (checkout / "asked").read_text().splitlines()
    assert asked[:2] == ["venv", "install .[examples,view]"]
    assert asked[2:4] == ["install .[dev,docs,examples,view]", "install .[models]"]
    assert asked[4:] == ["test", "test"]
    assert subprocess.run(make, cwd=checkout, check=True).returncode == 0
    assert (checkout / "asked").read_text().splitlines() == [*asked, "test"]


@pytest.mark.skipif(not shutil.which("make"), reason="needs make")
def test_an_installation_that_fails_is_not_taken_for_done(checkout: Path) -> None:
    (checkout / "fake").write_text(PYTHON.replace(">> asked ;;\n    *)", ">> asked; exit 3 ;;\n    *)"))
    make = ["make", "--silent", "test", "PYTHON=./fake"]
    for _ in range(2):
        assert subprocess.run(make, cwd=checkout, capture_output=True, check=False).returncode == 2
    assert (checkout / "asked").read_text().splitlines() == ["venv", *["install .[examples,view]"] * 2]
