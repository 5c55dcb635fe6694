"""Ctrl-C and SIGKILL of the user's own process: what is left is a whole checkpoint, and nothing else."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import psutil
import pytest

from partita.engine import cli
from partita.engine.parameters import Checkpoints, Manifest
from tests.faults import toy
from tests.faults.helpers import Command

FILE = str(Path(toy.__file__))
SIZES = ["--machines", "2", "--replicas", "2", "--shards", "2", "--batch", "8", "--checkpoints", "kept"]
FEW = ["--machines", "2", "--batch", "8", "--checkpoints", "kept"]
SOON_S = 10.0
"""Our promise is 2 s. Tests share their machine with others, and say so only where it is far missed."""


def newest(folder: Path) -> Manifest | None:
    shapes = {name: parameter.shape for name, parameter in toy.network().graph().parameters.items()}
    found = Checkpoints(folder / "kept").latest(shapes)
    return None if found is None else found.manifest


def assert_nothing_left(command: Command, hosts: dict[str, psutil.Process]) -> None:
    _, alive = psutil.wait_procs(hosts.values(), timeout=SOON_S)
    assert not alive, "hosts outlived the command"
    assert not list(command.temporary.iterdir())


@pytest.mark.parametrize("sizes", [FEW, pytest.param(SIZES, marks=pytest.mark.slow)], ids=["few", "many"])
def test_ctrl_c_keeps_a_checkpoint_from_which_the_run_goes_on(
    sizes: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Command("train", FILE, *sizes, "--epochs", "100000", folder=tmp_path) as command:
        command.wait_for("step ")
        hosts = command.hosts
        assert len(hosts) == (3 if sizes is FEW else 6)
        command.interrupt()
        code, took_s = command.end()
        assert (code, command.said[-1].startswith("partita: stopped after ")) == (130, True), command.said
        assert took_s < SOON_S
        assert_nothing_left(command, hosts)
    found = newest(tmp_path)
    assert found is not None and min(found.steps) > 0
    assert f"holds {sum(found.steps)} of" in command.said[-1]
    again = f"`partita train {FILE} {' '.join(sizes)} --epochs 100000 --resume` goes on from it"
    assert command.said[-1].endswith(again)
    assert "Traceback" not in "\n".join(command.said)

    # Some epochs more than were reported; resumed with another number of machines, replicas and shards.
    epochs = found.done[-1][1] // 32 + 12
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    arguments = ["--machines", "1", "--shards", "2", "--batch", "8", "--checkpoints", "kept"]
    monkeypatch.setattr(
        sys, "argv", ["partita", "train", FILE, *arguments, "--epochs", str(epochs), "--resume"]
    )
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 0
    said = capsys.readouterr()
    resumed = re.search(rf"resumed from checkpoint {found.checkpoint} at step (\d+)", said.err)
    assert resumed is not None, said.err
    # Steps that all files hold count as well, where they were not reported before the manifest was written.
    assert sum(found.steps) <= int(resumed[1]) < epochs * 32, found.steps
    assert f"trained {epochs * 32:,} steps" in said.out
    last = newest(tmp_path)
    assert last is not None and last.steps == (epochs * 32,)


@pytest.mark.slow
def test_ctrl_c_while_hosts_are_started(tmp_path: Path) -> None:
    with Command("train", FILE, *SIZES, folder=tmp_path) as command:
        command.wait_for("2 replicas of 2 machines")
        hosts = command.hosts
        command.interrupt()
        code, took_s = command.end()
        assert (code, command.said[-1]) == (130, "partita: stopped after 0 of 320 steps")
        assert took_s < SOON_S
        assert_nothing_left(command, hosts)
    assert newest(tmp_path) is None


@pytest.mark.slow
def test_a_job_in_the_background_ignores_ctrl_c_and_ends_in_order_on_sigterm(tmp_path: Path) -> None:
    arguments = ("train", FILE, *FEW, "--epochs", "100000")
    with Command(*arguments, folder=tmp_path, in_background=True) as command:
        command.wait_for("step ")
        hosts = command.hosts
        command.interrupt()
        command.wait_for("step ")
        command.terminate()
        code, _ = command.end()
        assert (code, command.said[-1].startswith("partita: stopped after ")) == (130, True), command.said
        assert_nothing_left(command, hosts)
    assert newest(tmp_path) is not None


@pytest.mark.slow
def test_a_second_ctrl_c_does_not_wait_for_the_checkpoint(tmp_path: Path) -> None:
    with Command("train", FILE, *FEW, "--epochs", "100000", folder=tmp_path) as command:
        command.wait_for("step ")
        hosts = command.hosts
        hosts["shard 0"].suspend()  # so that the last checkpoint cannot be written
        command.interrupt()
        command.wait_for("Ctrl-C again")
        command.interrupt()
        code, took_s = command.end()
        assert (code, command.said[-1].startswith("partita: stopped at once")) == (130, True), command.said
        assert took_s < SOON_S
        assert_nothing_left(command, hosts)


@pytest.mark.slow
def test_hosts_die_with_the_process_that_started_them(tmp_path: Path) -> None:
    with Command(
        "train", FILE, *FEW, "--epochs", "100000", "--checkpoint-every", "0.2", folder=tmp_path
    ) as run:
        run.wait_for("step ")
        hosts = run.hosts
        assert sorted(hosts) == ["part 0.0", "part 0.1", "shard 0"]
        run.kill()
        code, _ = run.end()
        assert code == -9
        _, alive = psutil.wait_procs(hosts.values(), timeout=SOON_S)
        assert not alive, "hosts outlived the command"
        # Nobody is left who could have removed the copy of the data; nothing else is there.
        assert [path.name[:8] for path in run.temporary.iterdir()] == ["partita-"]
    found = newest(tmp_path)
    assert found is not None, "a checkpoint is the old one or the new one, never half of either"
