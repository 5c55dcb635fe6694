"""The folders of a run: one run at a time, nothing of the user's is touched, and a killed run's data go."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import pytest

from partita.engine import LBFGS, SGD, Downpour, Run, Sandblaster, train
from partita.engine.files.temporary import temporary_folder
from partita.engine.parameters import Checkpoints
from partita.engine.parameters.folder_lock import FolderInUse, Holder, lock_folder
from partita.partitioner import Cluster, partition
from tests.drivers.conftest import WatchedThreads
from tests.faults import toy

BATCH = Sandblaster(LBFGS(max_iterations=3))


def train_toy(driver: Downpour | Sandblaster, folder: Path | None, **more: object) -> Run:
    plan = partition(toy.network(), Cluster.local(machines=1), batch=64, strategy="balanced")
    arguments: dict[str, object] = {"show": "nothing", "checkpoint_every_s": 0.02} | more
    if isinstance(driver, Downpour):
        arguments.setdefault("epochs", 20)
    return train(plan, toy.data(), driver=driver, checkpoints=folder, **arguments)  # type: ignore[arg-type]


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which temporary folders are made."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.mark.parametrize("driver", [Downpour(optimizer=SGD(0.05)), BATCH], ids=["downpour", "sandblaster"])
def test_nothing_of_the_users_in_the_folder_is_touched(
    on_threads: list[WatchedThreads], tmp_path: Path, driver: Downpour | Sandblaster
) -> None:
    """Folders that look like checkpoints, a start that looks like ours, through three runs."""
    for name in ("20240131", "99999999", "00000001", "00000002-abcdef01"):
        (tmp_path / name / "deep").mkdir(parents=True)
        (tmp_path / name / "deep" / "results.csv").write_text("1,2\n")
        (tmp_path / name / "manifest.json").write_text("{}")
    for name in ("start-mine.safetensors", "start-01234567.safetensors"):
        (tmp_path / name).write_text("a user's")
    users = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    train_toy(driver, tmp_path)
    first = Checkpoints(tmp_path).complete()
    assert first and first[0] < 100 and len(first) <= 3
    train_toy(driver, tmp_path, overwrite=True)
    train_toy(driver, tmp_path, resume=True)
    assert {path: path.read_bytes() for path in users} == users
    second = Checkpoints(tmp_path).complete()
    assert min(second) > max(first), "the replaced run's are gone"


def test_the_users_folder_may_be_a_link(on_threads: list[WatchedThreads], tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "runs").symlink_to(tmp_path / "disk")
    train_toy(Downpour(), tmp_path / "runs", epochs=1)
    run = train_toy(Downpour(), tmp_path / "runs", epochs=2, resume=True)
    assert run.steps == (8,) and Checkpoints(tmp_path / "disk").complete()


def test_only_the_owner_can_read_what_a_run_leaves(on_threads: list[WatchedThreads], tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    train_toy(BATCH, folder)
    made = [folder.parent, folder, *folder.rglob("*")]
    assert {stat.S_IMODE(path.stat().st_mode) for path in made} == {0o600, 0o700}


@pytest.mark.parametrize("how", [{}, {"resume": True}, {"overwrite": True}])
def test_a_second_run_in_the_folder_is_refused_and_the_first_is_named(
    on_threads: list[WatchedThreads], tmp_path: Path, how: dict[str, bool]
) -> None:
    with (
        lock_folder(tmp_path, "`partita train one.py` of network 'one'"),
        pytest.raises(FolderInUse) as refused,
    ):
        train_toy(Downpour(), tmp_path, **how)
    said = str(refused.value)
    assert said.startswith(f"{tmp_path} is in use by `partita train one.py` of network 'one' (process ")
    assert f"(process {os.getpid()} on {socket.gethostname()}, since 20" in said and "\n" not in said
    assert said.endswith("; wait for its end, or give another folder")
    train_toy(Downpour(), tmp_path, epochs=1)


def test_a_folder_is_held_while_a_run_lasts(
    on_threads: list[WatchedThreads], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[str] = []

    def commit(self: Checkpoints, manifest: object) -> None:
        with pytest.raises(FolderInUse) as second, lock_folder(tmp_path, "the second"):
            pass
        refused.append(str(second.value))
        monkeypatch.undo()
        self.commit(manifest)  # type: ignore[arg-type]

    monkeypatch.setattr(Checkpoints, "commit", commit)
    train_toy(Downpour(), tmp_path, epochs=1)
    assert "is in use by train() of network 'toy' (process " in refused[0]


HOLDS = """
import os, signal, sys, tempfile
from pathlib import Path
from partita.engine.files.temporary import temporary_folder
from partita.engine.parameters.folder_lock import lock_folder
tempfile.tempdir = sys.argv[1]
with temporary_folder("a run"), lock_folder(Path(sys.argv[2]), "a run"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_what_a_killed_run_left_stands_in_nobodys_way_and_is_removed(
    on_threads: list[WatchedThreads], tmp_path: Path, temporary: Path
) -> None:
    """The lock of a killed run is free and its copy of the data is removed; other folders stay."""
    kept, living = tmp_path / "kept", tmp_path / "living"
    users = temporary / "partita-run-notes"
    for folder in (kept, living, users):
        folder.mkdir()
    (users / "a file").write_text("a user's")
    of_another_computer = temporary / "partita-run-elsewhere"
    of_another_computer.mkdir()
    holder = Holder(1, "elsewhere", "2026-01-01 00:00:00 UTC", "a run")
    (of_another_computer / ".partita.holder").write_bytes(msgspec.json.encode(holder))
    (temporary / "partita-run-link").symlink_to(users)
    others = sorted(temporary.iterdir())
    holds = [
        subprocess.Popen(
            [sys.executable, "-c", HOLDS, temporary, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for folder in (kept, living)
    ]
    for process in holds:
        assert process.stdout is not None and process.stdout.readline() == b"held\n"
    assert len(list(temporary.iterdir())) == len(others) + 2
    os.kill(holds[0].pid, signal.SIGKILL)
    holds[0].wait()
    train_toy(Downpour(), kept, epochs=1)
    (of_the_living,) = set(temporary.iterdir()) - set(others)
    assert (of_the_living / ".partita.holder").exists()
    holds[1].communicate(b"")
    assert sorted(temporary.iterdir()) == others and (users / "a file").read_text() == "a user's"
    for process in holds:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.close()
        process.stdout.close()
    shutil.rmtree(temporary)


@pytest.mark.parametrize("left", [(), (".partita.lock",), (".partita.lock", "..partita.holder.1a2b.tmp")])
def test_what_a_run_left_that_was_killed_before_it_wrote_its_name_is_removed(
    temporary: Path, left: tuple[str, ...]
) -> None:
    folder = temporary / "partita-run-abcdefgh"
    folder.mkdir()
    for name in left:
        (folder / name).touch()
    with temporary_folder("a run") as own:
        assert list(temporary.iterdir()) == [own]
    assert not list(temporary.iterdir())


def test_a_new_folder_that_another_run_takes_for_abandoned_is_made_again(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mkdtemp, made = tempfile.mkdtemp, []

    def make(**named: str) -> str:
        """Another run begins as soon as the first folder is there."""
        made.append(mkdtemp(**named))
        if len(made) == 1:
            with temporary_folder("another run"):
                assert not Path(made[0]).exists()
            return made[0]
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", make)
    with temporary_folder("a run") as own:
        assert (own / ".partita.holder").exists()


def test_a_file_that_is_no_journal_is_not_replaced(on_threads: list[WatchedThreads], tmp_path: Path) -> None:
    (tmp_path / "journal").write_text("dear diary\n")
    with pytest.raises(ValueError, match="journal is not a journal of a run; move it away, or give another"):
        train_toy(BATCH, tmp_path, overwrite=True)
    assert (tmp_path / "journal").read_text() == "dear diary\n"


def test_resume_and_overwrite_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^resume=True and overwrite=True exclude each other; give one of"):
        train_toy(Downpour(), tmp_path, resume=True, overwrite=True)
