"""The simulator: the real machines hold every invariant, planted faults do not, and a seed is one history."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import pytest

from partita.engine.runtime.simulation import Outcome
from partita.engine.runtime.simulation.__main__ import main
from partita.engine.runtime.simulation.downpour import Machines, play
from tests.simulation.planted import FAULTS, Planted

SCHEDULES = 2000


def told(outcome: Outcome) -> str:
    return f"seed {outcome.seed} breaks {outcome.violation}\n" + "\n".join(outcome.story)


@pytest.mark.parametrize("first", range(0, SCHEDULES, SCHEDULES // 4))
def test_every_invariant_holds_in_every_schedule(first: int) -> None:
    for seed in range(first, first + SCHEDULES // 4):
        outcome = play(seed)
        assert outcome.violation is None, told(outcome)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_invariant_holds_in_very_many_schedules() -> None:
    for seed in range(SCHEDULES, SCHEDULES + 20_000):
        outcome = play(seed)
        assert outcome.violation is None, told(outcome)


@pytest.mark.parametrize("planted", FAULTS, ids=lambda planted: planted.machine.__name__)
def test_it_bites(planted: Planted) -> None:
    outcomes = (play(seed, planted.machines) for seed in range(planted.seeds))
    caught = next((outcome for outcome in outcomes if outcome.violation), None)
    assert caught is not None, f"not found within {planted.seeds} seeds"
    assert caught.violation is not None
    assert caught.violation.split(":")[0] in planted.reported.split(), caught.violation
    assert caught.story, "a failure tells its last events"


def test_the_same_seed_is_the_same_history_in_a_fresh_process() -> None:
    """Whatever the hashes of strings are there."""
    program = (
        "import hashlib\n"
        "from partita.engine.runtime.simulation.downpour import play\n"
        "for seed in range(40):\n"
        "    story = '\\n'.join(play(seed, keep_all=True).story)\n"
        "    print(hashlib.sha256(story.encode()).hexdigest())\n"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": hash_seed, "PATH": "", "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
            timeout=100,
        ).stdout.split()
        for hash_seed in ("1", "2")
    ]
    here = ["\n".join(play(seed, keep_all=True).story) for seed in range(40)]
    assert runs[0] == runs[1] == [hashlib.sha256(story.encode()).hexdigest() for story in here]
    assert len(set(runs[0])) == 40


def test_schedules_are_of_all_kinds() -> None:
    """Nothing is checked by schedules in which nothing happens."""
    stories = ["\n".join(play(seed, keep_all=True).story) for seed in range(150)]
    for event in (
        "crashes",
        "freezes for",
        "Commit",
        "Lost(",
        "Failed(",
        "Restart(",
        "StopRequested",
    ):
        assert sum(event in story for story in stories) >= 3, event


def test_the_command_says_how_fast_and_fails_loudly(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["--schedules", "20"]) == 0
    assert "20 schedules from seed 0: every invariant held" in capsys.readouterr().out
    fault = next(planted for planted in FAULTS if planted.machine.__name__ == "SaysSavedBeforeItIs")

    def broken(seed: int, machines: Machines | None = None, *, keep_all: bool = False) -> Outcome:
        return play(seed, fault.machines, keep_all=keep_all)

    monkeypatch.setattr("partita.engine.runtime.simulation.__main__.play", broken)
    assert main(["--schedules", "20"]) == 1
    captured = capsys.readouterr()
    assert "breaks I5" in captured.err
    assert len(captured.out.splitlines()) > 10
    assert "--first" in captured.err
