"""Too few open files are refused at the start, in one sentence; a soft limit is raised without a word."""

from __future__ import annotations

import os
import resource
import subprocess
import sys

import pytest

from partita.engine.launch import ProcessLauncher
from partita.engine.launch.descriptors import MOST, TooFewDescriptors, raise_limit, reserve


class Limits:
    """Stands for the kernel's limits of this process."""

    def __init__(self, soft: int, hard: int) -> None:
        self.now = soft, hard

    def get(self, which: int) -> tuple[int, int]:
        return self.now

    def set(self, which: int, limits: tuple[int, int]) -> None:
        assert limits[1] == self.now[1]
        self.now = limits


def limits(monkeypatch: pytest.MonkeyPatch, soft: int, hard: int) -> Limits:
    made = Limits(soft, hard)
    monkeypatch.setattr(resource, "getrlimit", made.get)
    monkeypatch.setattr(resource, "setrlimit", made.set)
    return made


INFINITY = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("soft", "hard", "raised"),
    [
        (1024, 4096, 4096),
        (1024, 1 << 20, MOST),
        (1024, INFINITY, MOST),
        (1 << 20, 1 << 20, 1 << 20),
        (INFINITY, INFINITY, INFINITY),
    ],
)
def test_the_soft_limit_is_raised(monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, raised: int) -> None:
    made = limits(monkeypatch, soft, hard)
    assert raise_limit() >= 4096
    assert made.now == (raised, hard)
    reserve(500)


def test_a_launcher_says_what_it_found_and_needs_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits(monkeypatch, 32, 64)
    with pytest.raises(
        TooFewDescriptors,
        match=r"may open 64 files, and a run of 12 hosts needs about \d+; .*`ulimit -n \d+`",
    ):
        ProcessLauncher(hosts=12)


@pytest.mark.slow
def test_a_command_with_too_few_files_ends_with_one_sentence() -> None:
    toy = os.path.join(os.path.dirname(__file__), "toy.py")
    done = subprocess.run(
        ["sh", "-c", f"ulimit -n 40; exec {sys.executable} -m partita.engine.cli train {toy} --epochs 1"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("partita: this process may open 40 files")
    assert "Traceback" not in done.stderr
