"""A batch method on replicas and shards, on threads of this process: same bits, resuming, warm starts."""

from __future__ import annotations

import dataclasses
import shutil
import signal
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from partita.engine import (
    LBFGS,
    SGD,
    Downpour,
    GradientDescent,
    Interrupted,
    Iteration,
    NonlinearCG,
    Run,
    Sandblaster,
    evaluate,
    train,
)
from partita.engine.parameters import Checkpoints, Journal
from partita.engine.protocol.coordinator_effects import Progress
from partita.engine.run import TrainingProgress
from partita.engine.run.metrics import Metrics
from partita.partitioner import Cluster, Plan, partition
from tests.drivers.conftest import WatchedThreads, run_on_threads
from tests.faults import toy

TWELVE = Sandblaster(LBFGS(max_iterations=12), replicas=2, shards=2, l2=1e-3)


def plan_of_toy(*, machines: int = 2, batch: int = 16) -> Plan:
    return partition(toy.network(), Cluster.local(machines=machines), batch=batch, strategy="balanced")


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
    assert all(after < before for (_, before), (_, after) in pairwise(found))
    assert evaluate(straight, toy.data()).accuracy > 0.9
    shares = {(one.busy, one.replicas) for one in straight.history if isinstance(one, Iteration)}
    assert (2, 2) in shares and shares <= {(1, 2), (2, 2)}, "a fast one may have taken all of a small batch"


@pytest.mark.parametrize("change", [{"replicas": 1}, {"replicas": 3, "backups": False}])
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
    """State of the folder when the coordinator was killed after this many requests."""
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
        if position is not None and position > after:
            shutil.rmtree(store.path(number))


@pytest.mark.parametrize(
    "after", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 5, 9, 12, 17, 20)), 25]
)
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


def test_limits_may_grow_and_nothing_is_done_twice(
    on_threads: list[WatchedThreads], straight: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    five = dataclasses.replace(TWELVE, method=LBFGS(max_iterations=5))
    first = train_toy(five, checkpoints=tmp_path)
    again = train_toy(five, checkpoints=tmp_path, resume=True, show="lines")
    assert not on_threads[1].boxes, "there was no work, and hosts were started"
    assert same_bits(again, first) and (again.iterations, again.outcome) == (5, first.outcome)
    assert "the method had ended already; allow more iterations" in capsys.readouterr().err
    other = dataclasses.replace(TWELVE, replicas=1)
    assert same_bits(train_toy(other, checkpoints=tmp_path, resume=True), straight)
    with pytest.raises(ValueError, match=r"the method asks for something else after .*limits may only grow"):
        train_toy(five, checkpoints=tmp_path, resume=True)
    assert same_bits(train_toy(TWELVE, checkpoints=tmp_path, resume=True), straight)


@pytest.mark.parametrize(
    "driver",
    [
        Sandblaster(NonlinearCG(max_iterations=8)),
        pytest.param(
            Sandblaster(GradientDescent(max_iterations=8), portion=32, push_every=3), marks=pytest.mark.slow
        ),
        Sandblaster(LBFGS(max_iterations=8), batch=128, replicas=2, l2=1e-3),
    ],
)
def test_other_methods_and_batches(on_threads: list[WatchedThreads], driver: Sandblaster) -> None:
    run = train_toy(driver)
    assert run.plan.batch == 16 and run.iterations == 8
    assert evaluate(run, toy.data()).accuracy > 0.7


def test_another_plan_and_other_shards_go_on(
    on_threads: list[WatchedThreads], straight: Run, kept: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "copy"
    killed(kept, folder, after=20)
    other = dataclasses.replace(TWELVE, shards=3, replicas=1, portion=16)
    run = train_toy(other, plan=plan_of_toy(machines=1, batch=64), checkpoints=folder, resume=True)
    for name, values in straight.parameters.items():
        np.testing.assert_allclose(run.parameters[name], values, rtol=0.02, atol=0.02, err_msg=name)


WARM = dataclasses.replace(TWELVE, warm_start=Downpour(optimizer=SGD(1e-30)), warm_epochs=2)


def test_a_warm_start_comes_first_in_the_same_run(
    on_threads: list[WatchedThreads], straight: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    """The warm start's steps are so small here that the method starts from the initial parameters."""
    run = train_toy(WARM, show="lines")
    assert (run.steps, run.iterations, run.checkpoint) == ((32,), 12, None)
    kinds = [type(one) for one in run.history]
    assert kinds == sorted(kinds, key=(TrainingProgress, Iteration).index) and set(kinds) == {
        TrainingProgress,
        Iteration,
    }
    assert same_bits(run, straight)
    said = capsys.readouterr().err
    assert said.index("step 32/32") < said.index("iteration 12/12")


def test_a_warm_start_is_resumed_in_its_own_stage_and_done_once(
    on_threads: list[WatchedThreads], straight: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert WARM.warm_start is not None
    train(plan_of_toy(), toy.data(), driver=WARM.warm_start, epochs=1, checkpoints=tmp_path, show="nothing")
    run = train_toy(WARM, checkpoints=tmp_path, resume=True, show="lines")
    assert "resumed from checkpoint 1 at step 16" in capsys.readouterr().err
    assert (run.steps, run.iterations) == ((32,), 12) and same_bits(run, straight)
    killed(tmp_path, tmp_path / "copy", after=7)
    begun = len(on_threads)
    again = train_toy(WARM, checkpoints=tmp_path / "copy", resume=True, show="lines")
    assert "resumed from the start and a journal of 7 answers" in capsys.readouterr().err
    assert len(on_threads) == begun + 1 and same_bits(again, straight)


def test_ctrl_c_keeps_what_was_found_and_the_run_goes_on(
    on_threads: list[WatchedThreads], straight: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = Metrics.add
    asked: list[int] = []

    def interrupts(self: Metrics, effect: Progress) -> None:
        add(self, effect)
        if self.history[-1].iteration >= 5 and not asked:
            asked.append(self.history[-1].iteration)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Metrics, "add", interrupts)
    with pytest.raises(Interrupted) as stopped:
        train_toy(TWELVE, checkpoints=tmp_path)
    run = stopped.value.run
    assert 5 <= run.iterations < 12, "what was under way may have ended one more"
    kept = f"the journal in {tmp_path} holds {run.iterations} iterations, and "
    kept += "train() with the same arguments and resume=True goes on from it"
    assert str(stopped.value) == f"stopped after {run.iterations} iterations; {kept}"
    assert (run.outcome, run.checkpoint) == (None, tmp_path)
    assert same_bits(train_toy(TWELVE, checkpoints=tmp_path, resume=True), straight)


@pytest.mark.slow
@pytest.mark.parametrize("after", [3, 8, 14])
def test_sampled_batches_go_on_with_the_same_bits(
    on_threads: list[WatchedThreads], tmp_path: Path, after: int
) -> None:
    """Over the end of an epoch, in another order of the examples."""
    driver = dataclasses.replace(TWELVE, batch=96, overlap=0.3)
    whole = train_toy(driver, checkpoints=tmp_path / "whole", checkpoint_every_s=0.02, seed=3)
    killed(tmp_path / "whole", tmp_path / "copy", after=after)
    alone = dataclasses.replace(driver, replicas=1)
    assert same_bits(train_toy(alone, checkpoints=tmp_path / "copy", resume=True, seed=3), whole)
