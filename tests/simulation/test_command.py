"""A seed is one history under any driver, and the command that plays many reports what it has found."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from functools import partial

import pytest

from partita.engine.testing import __main__
from partita.engine.testing.__main__ import main
from tests.simulation import planted_downpour, planted_sandblaster


@pytest.mark.slow
def test_the_same_seed_is_the_same_history_in_a_fresh_process() -> None:
    """The hashes of strings differ there."""
    program = (
        "import hashlib\n"
        "from partita.engine.testing.__main__ import PLAYERS\n"
        "for play in PLAYERS.values():\n"
        "    for seed in range(25):\n"
        "        trace = '\\n'.join(play(seed, keep_all=True).trace)\n"
        "        print(hashlib.sha256(trace.encode()).hexdigest())\n"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": hash_seed, "PATH": "", "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for hash_seed in ("1", "2")
    ]
    runs = [process.communicate(timeout=280)[0].split() for process in processes]
    players = __main__.PLAYERS.values()
    here = ["\n".join(play(seed, keep_all=True).trace) for play in players for seed in range(25)]
    assert runs[0] == runs[1] == [hashlib.sha256(trace.encode()).hexdigest() for trace in here]
    assert len(set(runs[0])) == 25 * len(__main__.PLAYERS)


def test_it_reports_its_speed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--schedules", "8"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for line, driver in zip(lines, __main__.PLAYERS, strict=True):
        assert line.startswith(f"8 schedules of {driver} from seed 0: every invariant held")


def test_processes_share_the_seeds(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(__main__, "CHUNK", 3)
    assert main(["--schedules", "10", "--driver", "downpour", "--jobs", "2"]) == 0
    assert "10 schedules of downpour from seed 0" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["downpour", "sandblaster"])
def test_it_fails_loudly(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = {"downpour": planted_downpour.FAULTS, "sandblaster": planted_sandblaster.FAULTS}[name]
    fault = next(one for one in planted if one.machine.__name__ == "ReportsSavedBeforeItIs")
    broken = partial(__main__.PLAYERS[name], machines=[fault.machine])
    monkeypatch.setitem(__main__.PLAYERS, name, broken)
    assert main(["--schedules", "20", "--driver", name]) == 1
    captured = capsys.readouterr()
    assert f"of {name} breaks I5" in captured.err
    assert len(captured.out.splitlines()) > 10
    assert f"--driver {name} --first" in captured.err
