"""Runs that cannot go on: one clear sentence, the user's own traceback, and the last good checkpoint."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path

import numpy as np
import pytest

from partita.engine import SGD, Downpour, Interrupted, RunFailed, train
from partita.engine.parameters import Checkpoint, Checkpoints
from partita.engine.protocol.coordinator_effects import Progress
from partita.partitioner import Cluster, Plan, partition
from tests.faults import toy
from tests.faults.helpers import Witness, hosts_of

pytestmark = pytest.mark.filterwarnings("ignore::partita.engine.kernels.nodes.errors.SlowNodeWarning")


def plan_of_toy() -> Plan:
    return partition(toy.network(), Cluster.local(machines=2), batch=8, strategy="balanced")


def newest(folder: Path, plan: Plan) -> Checkpoint:
    found = Checkpoints(folder).latest({name: p.shape for name, p in plan.graph.parameters.items()})
    assert found is not None
    return found


@pytest.mark.slow
def test_an_error_in_a_function_of_the_user_is_tried_three_times(witness: Witness) -> None:
    plan = partition(toy.with_node(toy.fussy), Cluster.local(machines=1), batch=8, strategy="balanced")
    with pytest.raises(
        RunFailed, match=r"^part 0\.0 failed 3 times: ValueError: this node bears no"
    ) as failed:
        train(plan, toy.data(), driver=Downpour(optimizer=SGD(0.05)), epochs=2)
    (note,) = failed.value.__notes__
    assert 'tests/faults/toy.py", line' in note and "in the upward function of Node fussy 'odd'" in note
    assert sum("of 3 times" in text for text in witness.texts) == 2


@pytest.mark.slow
def test_a_function_that_cannot_be_compiled_ends_the_run_before_it_starts(witness: Witness) -> None:
    plan = partition(toy.with_node(toy.unknown_name), Cluster.local(machines=1), batch=8, strategy="balanced")
    with pytest.raises(RunFailed, match=r"^part 0\.0: Node unknown_name 'odd'") as failed:
        train(plan, toy.data(), driver=Downpour(), epochs=2)
    assert "return incoming[0] + no_such_name" in str(failed.value)
    assert not hasattr(failed.value, "__notes__"), (
        "the sentence shows the user's line; our frames explain nothing"
    )
    assert not witness.reports("part 0.0")
    assert not any("of 3 times" in text for text in witness.texts)


def test_numbers_that_run_away_end_the_run_and_never_become_a_checkpoint(
    witness: Witness, tmp_path: Path
) -> None:
    plan = plan_of_toy()
    train(plan, toy.data(), driver=Downpour(optimizer=SGD(0.05)), epochs=1, checkpoints=tmp_path)
    good = newest(tmp_path, plan)
    with pytest.raises(RunFailed) as failed:
        train(
            plan,
            toy.data(),
            driver=Downpour(optimizer=SGD(1e38)),
            epochs=100,
            checkpoints=tmp_path,
            checkpoint_every_s=0.05,
            resume=True,
        )
    assert "is not finite" in str(failed.value) or "are not finite" in str(failed.value)
    assert f"the checkpoint in {tmp_path} holds" in str(failed.value)
    assert not any("of 3 times" in text for text in witness.texts), "it would fail in the same way again"
    kept = newest(tmp_path, plan)
    assert kept.manifest.checkpoint >= good.manifest.checkpoint
    assert all(np.isfinite(values).all() for values in kept.parameters().values())


def limit_files(name: str, n_bytes: int) -> None:
    """Limits the size of the files that this process writes from now on."""
    resource.prlimit(
        hosts_of(os.getpid())[name].pid, resource.RLIMIT_FSIZE, (n_bytes, resource.RLIM_INFINITY)
    )


@pytest.mark.slow
def test_a_full_disk_costs_checkpoints_and_not_the_run(witness: Witness, tmp_path: Path) -> None:
    plan = plan_of_toy()

    def has_checkpoint(progress: Progress) -> bool:
        return any(tmp_path.rglob("manifest.json")) and sum(newest(tmp_path, plan).manifest.steps) > 0

    witness.when(has_checkpoint, lambda: limit_files("shard 1", 16))
    witness.when_said("was not written: shard 1: File too large; it is tried again in 1 s", lambda: None)
    witness.when_said("was not written", lambda: limit_files("shard 1", resource.RLIM_INFINITY))
    driver = Downpour(shards=2, optimizer=SGD(0.05))
    run = train(
        plan,
        toy.data(),
        driver=driver,
        epochs=300,
        checkpoints=tmp_path,
        checkpoint_every_s=0.2,
        show="nothing",
    )
    kept = newest(tmp_path, plan)
    assert run.steps == kept.manifest.steps == (9600,) and not run.lost_pushes


@pytest.mark.slow
def test_a_disk_that_stays_full_fails_the_last_checkpoint_and_keeps_the_one_before(
    witness: Witness, tmp_path: Path
) -> None:
    plan = plan_of_toy()
    train(plan, toy.data(), driver=Downpour(), epochs=1, checkpoints=tmp_path)
    before = newest(tmp_path, plan).manifest
    witness.when_said("resumed from", lambda: None)
    witness.when(lambda progress: True, lambda: limit_files("shard 0", 16))
    with pytest.raises(
        RunFailed, match=r"not written: shard 0: File too large; the last one was tried for "
    ) as failed:
        train(
            plan,
            toy.data(),
            driver=Downpour(),
            epochs=20,
            checkpoints=tmp_path,
            checkpoint_timeout_s=0.5,
            resume=True,
        )
    assert newest(tmp_path, plan).manifest == before
    assert "and train() with the same arguments and resume=True goes on from it" in str(failed.value)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_shard_may_die_often_as_long_as_checkpoints_are_made(witness: Witness, tmp_path: Path) -> None:
    """Each time a checkpoint follows soon, however long the usual interval is."""
    plan, killed = plan_of_toy(), []

    def kill() -> None:
        killed.append(len(list(tmp_path.rglob("manifest.json"))))
        hosts_of(os.getpid())["shard 0"].kill()

    def has_newer(progress: Progress) -> bool:
        found = [int(path.parent.name[:8]) for path in tmp_path.rglob("manifest.json")]
        return max(found, default=0) >= len(killed)

    for _ in range(7):
        witness.when(has_newer, kill)
    witness.when(has_newer, lambda: signal.raise_signal(signal.SIGINT))
    driver = Downpour(shards=2, optimizer=SGD(0.05))
    with pytest.raises(Interrupted):
        train(plan, toy.data(), driver=driver, epochs=10**6, checkpoints=tmp_path, checkpoint_every_s=1000.0)
    assert len(killed) == 7
