"""A batch method against replicas and shards, on threads of this process: same bits, resuming, warm starts."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest

from partita.engine import SGD, Adagrad, Downpour, Iteration, Run, RunFailed, train
from partita.engine.drivers.evaluate import evaluate
from partita.engine.drivers.sandblaster import Sandblaster
from partita.engine.methods import LBFGS, GradientDescent, NonlinearCG
from partita.engine.parameters import CheckpointError, Checkpoints, Journal
from partita.partitioner import Cluster, Plan, partition
from tests.drivers.conftest import WatchedThreads, run_on_threads
from tests.faults import toy

TWELVE = Sandblaster(LBFGS(max_iterations=12), replicas=2, shards=2, l2=1e-3)


def plan_of_toy(*, machines: int = 2, batch: int = 16) -> Plan:
    return partition(
        toy.network(), Cluster.local(machines=machines), batch=batch, strategy="balanced"
    )


def train_toy(driver: Sandblaster, *, plan: Plan | None = None, examples: int = 256, **more: object) -> Run:
    arguments: dict[str, object] = {"show": "nothing"} | more
    return train(plan or plan_of_toy(), toy.data(examples), driver=driver, **arguments)  # type: ignore[arg-type]


def same_bits(a: Run, b: Run) -> bool:
    return all(np.array_equal(a.parameters[name], values) for name, values in b.parameters.items())


def losses(run: Run) -> list[tuple[int, float]]:
    return [(one.iteration, one.loss) for one in run.history if isinstance(one, Iteration)]


@pytest.fixture(scope="module")
def straight() -> Run:
    """Twelve iterations without any interruption, on processes of their own."""
    with pytest.MonkeyPatch.context() as patch:
        run_on_threads(patch)
        return train_toy(TWELVE)


def test_a_run_says_how_it_went(straight: Run) -> None:
    assert straight.outcome is not None and straight.outcome.kind == "stopped"
    assert (straight.iterations, straight.steps, len(straight.history)) == (12, (), 12)
    found = losses(straight)
    assert [n for n, _ in found] == list(range(1, 13))
    assert all(after < before for (_, before), (_, after) in zip(found, found[1:], strict=False))
    assert evaluate(straight, toy.data()).accuracy > 0.9


@pytest.mark.parametrize("change", [{"replicas": 1}, {"replicas": 3}, {"backups": False}])
def test_who_computes_changes_no_bit(
    on_threads: list[WatchedThreads], straight: Run, change: dict[str, object]
) -> None:
    assert same_bits(train_toy(dataclasses.replace(TWELVE, **change)), straight)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def kept(straight: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the same run, with a few checkpoints."""
    folder = tmp_path_factory.mktemp("kept") / "checkpoints"
    with pytest.MonkeyPatch.context() as patch:
        run_on_threads(patch)
        assert same_bits(train_toy(TWELVE, checkpoints=folder, checkpoint_every_s=0.02), straight)
    return folder


def killed(kept: Path, folder: Path, *, after: int) -> None:
    """What the folder was when the coordinator was killed after so many requests."""
    shutil.copytree(kept, folder)
    found = Journal.read(folder / "journal")
    assert found is not None
    cut = Journal.create(folder / "journal", found.header)
    for entry in found.entries[:after]:
        cut.append(entry.index, entry.digest, entry.scalars)
    cut.close()
    store = Checkpoints(folder)
    for number in store.complete():
        position = store.open(number, found.header.shapes).manifest.position
        assert position is not None
        if position > after:
            shutil.rmtree(folder / f"{number:08d}")


@pytest.mark.parametrize("after", [1, 2, 9, 17, 25])
def test_a_run_that_was_killed_goes_on_in_the_middle_of_a_line_search_with_the_same_bits(
    on_threads: list[WatchedThreads], straight: Run, kept: Path, tmp_path: Path, after: int
) -> None:
    folder = tmp_path / "copy"
    killed(kept, folder, after=after)
    before = (folder / "journal").read_bytes()
    run = train_toy(TWELVE, checkpoints=folder, resume=True)
    assert same_bits(run, straight)
    assert (run.iterations, run.outcome) == (12, straight.outcome)
    assert losses(run) == losses(straight)[12 - len(run.history) :]
    journal = (folder / "journal").read_bytes()
    assert journal.startswith(before) and journal == (kept / "journal").read_bytes()
