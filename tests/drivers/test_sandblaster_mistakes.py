"""Mistakes with a batch method: one clear sentence each, and nothing is lost."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from partita.engine import (
    LBFGS,
    SGD,
    Direction,
    DirectionGenerator,
    Downpour,
    LineSearchMethod,
    Run,
    RunFailed,
    Sandblaster,
    train,
)
from partita.engine.methods import GRADIENT
from partita.engine.parameters import Checkpoints, Journal
from partita.partitioner import Cluster, partition
from tests.drivers.conftest import WatchedThreads, run_on_threads
from tests.faults import toy

DRIVER = Sandblaster(LBFGS(max_iterations=4))


def train_toy(driver: Sandblaster | Downpour = DRIVER, *, hidden: int = 12, **more: Any) -> Run:
    plan = partition(toy.network(hidden=hidden), Cluster.local(machines=1), batch=64, strategy="balanced")
    arguments = {"data": toy.data(), "show": "nothing"} | more
    return train(plan, driver=driver, **arguments)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of four iterations."""
    folder = tmp_path_factory.mktemp("done") / "checkpoints"
    with pytest.MonkeyPatch.context() as patch:
        run_on_threads(patch)
        train_toy(checkpoints=folder)
    return folder


@pytest.fixture
def folder(done: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return shutil.copytree(done, tmp_path / "copy")


def contents(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def other_numbers() -> dict[str, Any]:
    data = toy.data()
    return {"picture": data["picture"][::-1], "digit": data["digit"]}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"hidden": 10},
            r"is of another network: 'hidden.weight' is \(12, 8\), and \(10, 8\) in this network",
        ),
        (
            {"data": toy.data(255)},
            "is of a run with 256 examples, and this one has 255 examples; resume with the",
        ),
        ({"data": toy.data(512)}, "is of a run with 256 examples, and this one has 512 examples"),
        (
            {"data": other_numbers()},
            "is of a run with other data: as many examples, with other numbers or in an",
        ),
        ({"seed": 1}, "is of a run with the seed 0, and this one has the seed 1"),
        (
            {"driver": Sandblaster(LBFGS(history=3))},
            r"with the method LBFGS\(.*history=10\), and this one has .*=3",
        ),
        (
            {"driver": dataclasses.replace(DRIVER, portion=32)},
            "portions of 64 examples, and this one has portions",
        ),
        (
            {"driver": dataclasses.replace(DRIVER, push_every=2)},
            "1 portions for each push, and this one has 2",
        ),
        ({"driver": dataclasses.replace(DRIVER, l2=0.5)}, "with an l2 of 0.0, and this one has an l2 of 0.5"),
        (
            {"driver": Sandblaster(LBFGS(max_iterations=2))},
            r"asks for something else .* \(limits may only grow\)",
        ),
        (
            {"driver": Downpour(optimizer=SGD(0.1)), "epochs": 1},
            r"was written by Sandblaster with LBFGS\(.*, and Downpour cannot go on with that; resume",
        ),
    ],
)
def test_a_journal_of_another_run_is_refused_and_left_alone(
    on_threads: list[WatchedThreads], folder: Path, change: dict[str, Any], sentence: str
) -> None:
    before = contents(folder)
    with pytest.raises(ValueError, match=sentence) as raised:
        train_toy(**{"checkpoints": folder, "resume": True} | change)
    assert "\n" not in str(raised.value)
    assert contents(folder) == before


def without_journal(folder: Path) -> None:
    (folder / "journal").unlink()


def without_checkpoints_and_start(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != "journal":
            path.write_bytes(b"something else")


def with_a_damaged_first_line(folder: Path) -> None:
    journal = folder / "journal"
    journal.write_bytes(journal.read_bytes().replace(b'"seed":0', b'"seed":1'))


def with_checkpoints_of_downpour(folder: Path) -> None:
    shutil.rmtree(folder)
    train_toy(Downpour(), epochs=1, checkpoints=folder)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (
            without_journal,
            "needs its journal, and .*/journal is not there; train from the start, or put it back",
        ),
        (
            without_checkpoints_and_start,
            "has no checkpoint that can be used, and start-.* is missing or damaged",
        ),
        (
            with_a_damaged_first_line,
            "the journal .* is damaged in its first line; train from the start, or give",
        ),
        (
            with_checkpoints_of_downpour,
            r"was written with SGD\(.*, and a batch method goes on from a journal; give warm_start",
        ),
    ],
)
def test_what_no_run_can_go_on_from_is_reported(
    on_threads: list[WatchedThreads], folder: Path, damage: Callable[[Path], None], sentence: str
) -> None:
    damage(folder)
    before = contents(folder)
    with pytest.raises(ValueError, match=sentence):
        train_toy(checkpoints=folder, resume=True)
    assert contents(folder) == before


def test_a_torn_journal_goes_on_from_its_last_whole_entry(
    on_threads: list[WatchedThreads], done: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The checkpoint is then ahead of the journal, and is not used."""
    whole = (folder / "journal").read_bytes()
    (folder / "journal").write_bytes(whole[:-5])
    run = train_toy(checkpoints=folder, resume=True, show="lines")
    said = capsys.readouterr().err
    assert "is damaged or cut short behind request" in said
    assert "answers led to, and the journal has" in said and "resumed from the start" in said
    assert run.iterations == 4 and (folder / "journal").read_bytes() == whole


def test_a_run_that_begins_anew_must_say_so_and_replaces_the_earlier_one_late(
    on_threads: list[WatchedThreads], folder: Path
) -> None:
    before = (folder / "journal").read_bytes()
    with pytest.raises(ValueError, match="a batch of 1000 examples is more than the data has"):
        train_toy(Sandblaster(batch=1000), checkpoints=folder, overwrite=True)
    other = dataclasses.replace(DRIVER, l2=0.1)
    with pytest.raises(
        ValueError, match=r"earlier run; give resume=True to go on with it, overwrite=True to"
    ):
        train_toy(other, checkpoints=folder)
    assert (folder / "journal").read_bytes() == before
    (folder / "start-mine.safetensors").write_text("a user's")
    train_toy(other, checkpoints=folder, overwrite=True)
    assert Checkpoints(folder).complete() == [2]
    found = Journal.read(folder / "journal")
    assert found is not None and found.header.l2 == 0.1 and found.header.first_checkpoint == 2
    ours = f"start-{found.header.run[:8]}.safetensors"
    assert sorted(path.name for path in folder.glob("start-*")) == sorted([ours, "start-mine.safetensors"])


def test_a_loss_that_is_not_finite_at_the_start(on_threads: list[WatchedThreads], tmp_path: Path) -> None:
    names = {"hidden.weight": (12, 8), "hidden.bias": (12,), "scores.weight": (3, 12), "scores.bias": (3,)}
    spoilt = {name: np.full(shape, np.float32(3e38)) for name, shape in names.items()}
    with pytest.raises(
        RunFailed, match=r"^The loss at the start is .*, or its gradient is not finite"
    ) as raised:
        train_toy(initial=spoilt, checkpoints=tmp_path)
    assert ".;" not in str(raised.value) and "\n" not in str(raised.value)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Uphill(LineSearchMethod):
    """A method that has its sign wrong."""

    def directions(self) -> DirectionGenerator:
        while True:
            yield Direction(((1.0, GRADIENT),))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Broken(LineSearchMethod):
    """A method whose second direction raises."""

    def directions(self) -> DirectionGenerator:
        yield Direction(((-1.0, GRADIENT),))
        raise KeyError("no direction")


def test_a_line_search_that_cannot_descend(on_threads: list[WatchedThreads]) -> None:
    with pytest.raises(
        RunFailed,
        match=r"^Along the gradient, .* nothing is lower than a loss of .* or the gradient is not the loss",
    ):
        train_toy(Sandblaster(Uphill()))


def test_a_method_that_raises_is_shown_with_its_traceback_and_what_is_kept(
    on_threads: list[WatchedThreads], tmp_path: Path
) -> None:
    with pytest.raises(RunFailed, match="the method failed: KeyError: 'no direction'") as raised:
        train_toy(Sandblaster(Broken()), checkpoints=tmp_path)
    assert "holds 1 iteration" in str(raised.value) and "resume=True goes on from it" in str(raised.value)
    assert 'raise KeyError("no direction")' in raised.value.__notes__[0]


def test_a_disk_that_is_full_ends_the_run_and_costs_nothing(
    on_threads: list[WatchedThreads], folder: Path, done: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(folder)
    real, written = os.write, [0]

    def full(descriptor: int, data: Any) -> int:
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith("/journal"):
            written[0] += 1
            if written[0] == 4:
                raise OSError(28, "No space left on device")
        return real(descriptor, data)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(OSError, match=r"journal cannot be written \(No space .*\); .* resume"):
            train_toy(checkpoints=folder)
    run = train_toy(checkpoints=folder, resume=True)
    assert run.iterations == 4
    assert (folder / "journal").read_bytes().partition(b"\n")[2] == (
        (done / "journal").read_bytes().partition(b"\n")[2]
    )
