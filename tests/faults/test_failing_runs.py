"""Runs that cannot go on: one clear sentence, the user's own traceback, and the last good checkpoint."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import numpy as np
import pytest

from partita.engine import SGD, Downpour, RunFailed, train
from partita.engine.parameters.checkpoint import Checkpoints
from partita.engine.parameters.reader import Checkpoint
from partita.engine.protocol.orders import Progress
from partita.partitioner import Cluster, Plan, partition
from tests.faults import toy
from tests.faults.helpers import Witness, hosts_of


def plan_of_toy() -> Plan:
    return partition(toy.network(), Cluster.local(machines=2), batch=8, strategy="balanced")


def newest(folder: Path, plan: Plan) -> Checkpoint:
    found = Checkpoints(folder).latest({name: p.shape for name, p in plan.graph.parameters.items()})
    assert found is not None
    return found


def test_an_error_in_a_function_of_the_user_is_tried_three_times(witness: Witness) -> None:
    plan = partition(toy.with_node(toy.fussy), Cluster.local(machines=1), batch=8, strategy="balanced")
    with pytest.raises(
        RunFailed, match=r"^part 0\.0 failed 3 times: ValueError: this node bears no"
    ) as failed:
        train(plan, toy.data(), driver=Downpour(rule=SGD(0.05)), epochs=2)
    (note,) = failed.value.__notes__
    assert 'tests/faults/toy.py", line' in note and "in the upward function of Node fussy 'odd'" in note
    assert sum("of 3 times" in text for text in witness.texts) == 2


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
    train(plan, toy.data(), driver=Downpour(rule=SGD(0.05)), epochs=1, checkpoints=tmp_path)
    good = newest(tmp_path, plan)
    with pytest.raises(RunFailed) as failed:
        train(
            plan,
            toy.data(),
            driver=Downpour(rule=SGD(1e38)),
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


def test_a_full_disk_ends_the_run_and_keeps_the_last_checkpoint(witness: Witness, tmp_path: Path) -> None:
    plan = plan_of_toy()

    def fill() -> None:  # from now on this process cannot write more than 16 bytes into a file
        resource.prlimit(hosts_of(os.getpid())["shard 1"].pid, resource.RLIMIT_FSIZE, (16, 16))

    def has_checkpoint(progress: Progress) -> bool:
        return any(tmp_path.rglob("manifest.json")) and sum(newest(tmp_path, plan).manifest.steps) > 0

    witness.when(has_checkpoint, fill)
    driver = Downpour(shards=2, rule=SGD(0.05))
    with pytest.raises(
        RunFailed, match=r"^shard 1: checkpoint \d+ was not written: .*File too large"
    ) as failed:
        train(plan, toy.data(), driver=driver, epochs=10_000, checkpoints=tmp_path, checkpoint_every_s=0.2)
    kept = newest(tmp_path, plan)
    assert f"holds {sum(kept.manifest.steps)} of 320000 steps, and train() with" in str(failed.value)
