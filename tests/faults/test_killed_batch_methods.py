"""SIGKILL in the middle of a batch method: it ends where it would have ended, to the bit."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from random import Random

import numpy as np
import pytest

from partita.engine import LBFGS, Run, Sandblaster, train
from partita.partitioner import Cluster, partition
from tests.faults import toy
from tests.faults.helpers import Command, Witness, hosts_of

pytestmark = pytest.mark.slow

DRIVER = Sandblaster(LBFGS(max_iterations=60, ftol=0), replicas=2, shards=2, l2=1e-3)


def train_toy(folder: Path | None = None, *, every_s: float = 0.3, **more: object) -> Run:
    driver = dataclasses.replace(DRIVER, **more)  # type: ignore[arg-type]
    plan = partition(toy.network(), Cluster.local(machines=2), batch=8, strategy="balanced")
    return train(
        plan,
        toy.data(),
        driver=driver,
        checkpoints=folder,
        checkpoint_every_s=every_s,
        resume=folder is not None,
        show="nothing",
    )


@pytest.fixture(scope="module")
def straight() -> Run:
    return train_toy()


def same_bits(a: Run, b: Run) -> bool:
    return all(np.array_equal(a.parameters[name], values) for name, values in b.parameters.items())


def kill(name: str) -> None:
    hosts_of(os.getpid())[name].kill()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("part 1.0", "part 1.0: its process was ended by SIGKILL; replica 1 starts again, and others"),
        ("shard 1", "shard 1: its process was ended by SIGKILL; all shards go back to "),
    ],
)
def test_a_killed_host_costs_no_bit(straight: Run, witness: Witness, name: str, said: str) -> None:
    witness.when_done(10, lambda: kill(name))
    run = train_toy()
    assert witness.index(said)
    assert same_bits(run, straight) and run.outcome == straight.outcome


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("durability", ["log", "replicated"])
def test_shards_that_are_killed_at_drawn_moments_go_on_where_they_were(
    straight: Run, witness: Witness, durability: str, replicas: int
) -> None:
    random, copies = Random(replicas), durability == "replicated"
    victims = ("shard 0", "backup 0", "shard 0") if copies else ("shard 0", "shard 1", "shard 1")
    for n, victim in enumerate(victims):
        if copies:
            witness.when_said("shard 0 and backup 0 have the same", lambda: None)
        moment = 4 + 12 * n + random.randrange(8)
        witness.when_done(moment, lambda victim=victim: kill(victim))  # type: ignore[misc]
    method = LBFGS(max_iterations=400 if copies else 60, ftol=0, gtol=0 if copies else 1e-5)
    run = train_toy(durability=durability, replicas=replicas, method=method)
    assert same_bits(run, train_toy(method=method) if copies else straight), witness.texts
    assert not any("go back" in text for text in witness.texts), witness.texts


def test_both_copies_that_are_killed_together_go_back_to_the_checkpoint(witness: Witness) -> None:
    method = LBFGS(max_iterations=300, ftol=0, gtol=0)
    witness.when_said("shard 0 and backup 0 have the same", lambda: None)
    witness.when_done(1, lambda: (kill("backup 0"), kill("shard 0")))  # type: ignore[arg-type, return-value]
    witness.when_said("shard 0 and backup 0 have the same", lambda: kill("shard 0"))
    run = train_toy(durability="replicated", method=method)
    assert witness.index("all shards go back to") < witness.index("goes on from backup 0")
    assert same_bits(run, train_toy(method=method))


def test_all_of_a_replica_and_a_shard_one_after_another(straight: Run, witness: Witness) -> None:
    for iteration, name in ((5, "part 0.0"), (15, "shard 0"), (20, "part 1.1"), (25, "shard 1")):
        witness.when_done(iteration, lambda name=name: kill(name))  # type: ignore[misc]
    assert same_bits(train_toy(), straight)


def test_a_shard_of_a_resumed_run_dies_before_its_first_checkpoint(
    straight: Run, witness: Witness, tmp_path: Path
) -> None:
    first = train_toy(tmp_path, method=LBFGS(max_iterations=20, ftol=0))
    assert first.iterations == 20
    witness.when_done(30, lambda: kill("shard 0"))
    run = train_toy(tmp_path, every_s=1000.0)
    assert "all shards go back to the start, and" in witness.seen[witness.index("shard 0: its process")]  # type: ignore[operator]
    assert same_bits(run, straight)


def test_the_coordinator_is_killed_and_the_command_is_given_again(tmp_path: Path) -> None:
    """The hosts end with the coordinator; the scalars that it received are in the journal."""
    ended: list[bytes] = []
    for folder, kills in ((tmp_path / "straight", 0), (tmp_path / "killed", 2)):
        folder.mkdir()
        options = ["--driver", "sandblaster", "--batch", "8", "--replicas", "2", "--shards", "2"]
        options += ["--max-iterations", "300", "--ftol", "0", "--gtol", "0", "--checkpoint-every", "0.3"]
        options += ["--save", "net.safetensors", "--strategy", "balanced"]
        arguments = ["train", str(Path(toy.__file__)), *options]
        for _ in range(kills):
            with Command(*arguments, "--resume", folder=folder) as command:
                command.wait_for("iteration ")
                command.kill()
        with Command(*arguments, "--resume", folder=folder) as command:
            code, _ = command.end()
            assert code == 0, command.said
        assert any("resumed from" in line for line in command.said) == bool(kills)
        ended.append((folder / "net.safetensors").read_bytes())
    assert ended[0] == ended[1]
