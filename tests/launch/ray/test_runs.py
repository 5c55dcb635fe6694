"""Runs on a real Ray cluster of several nodes: trained as on this machine, and a removed node is survived."""

from __future__ import annotations

import importlib.util
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from partita.engine import (
    LBFGS,
    SGD,
    AllReduce,
    Downpour,
    Interrupted,
    Pool,
    Ray,
    Run,
    RunFailed,
    Sandblaster,
    evaluate,
    predict,
    train,
)
from partita.engine.protocol.coordinator_effects import Progress
from partita.partitioner import Cluster, Plan, partition
from tests.faults import toy
from tests.faults.helpers import Witness
from tests.launch.pool.helpers import Program
from tests.launch.ray import clusters

pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None,
        reason="Ray is not installed: pip install 'partita[ray]'",
    ),
]


class LossWitness(Witness):
    """A witness that knows whether training got further after a loss."""

    def __init__(self) -> None:
        super().__init__()
        self._steps: dict[str, int] = {}
        self._further: int | None = None

    def update(self, progress: Progress) -> None:
        if progress.step > self._steps.get(progress.source, 0):
            self._steps[progress.source] = progress.step
            if self._further is not None:
                self._further += 1
        super().update(progress)

    def lose(self, act: Callable[[], Any]) -> Callable[[], None]:
        """Returns what acts, and counts from then on."""

        def acts() -> None:
            act()
            self._further = 0

        return acts

    @property
    def went_on(self) -> bool:
        """Whether parts got further, twice: what was under way at the loss may be reported after it."""
        return self._further is not None and self._further > 1


@pytest.fixture
def witness(monkeypatch: pytest.MonkeyPatch) -> LossWitness:
    made = LossWitness()
    monkeypatch.setattr("partita.engine.run.display.Display", made)
    return made


def plan_of_toy(*, threads: int = 1) -> Plan:
    cluster = Cluster.local(machines=2, threads=threads)
    return partition(toy.network(), cluster, batch=8, strategy="balanced")


def trained(driver: Any, on: Ray | Pool | str | None, **arguments: Any) -> Run:
    return train(plan_of_toy(), toy.data(), driver=driver, on=on, **arguments)


def assert_same(one: Run, other: Run) -> None:
    for name, values in one.parameters.items():
        np.testing.assert_array_equal(values, other.parameters[name])


def test_drivers_train_and_sessions_compute_on_three_nodes_and_nothing_is_left() -> None:
    on = Ray(strategy="STRICT_SPREAD")
    batch = {"driver": Sandblaster(replicas=2, shards=2, method=LBFGS(max_iterations=30))}
    synchronous = {"driver": AllReduce(replicas=3, optimizer=SGD(0.05)), "epochs": 10}
    with clusters.nodes(3):
        for arguments in (batch, synchronous):
            assert_same(
                trained(on=on, show="nothing", **arguments), trained(on=None, show="nothing", **arguments)
            )
        run = trained(Downpour(replicas=3, shards=3), on, epochs=20, show="nothing")
        found = evaluate(run, toy.data(), hosts=on, show="nothing")
        assert found == evaluate(run, toy.data()) and found.accuracy > 0.9
        pictures = {"picture": toy.data()["picture"]}
        scores = predict(run, pictures, hosts="ray", show="nothing")
        np.testing.assert_array_equal(scores, predict(run, pictures))
        assert not clusters.groups()
        assert not psutil.wait_procs(clusters.actors(), timeout=10.0)[1]


@pytest.mark.parametrize("kind", ["Downpour", "Sandblaster", "AllReduce"])
def test_a_node_that_is_removed_is_replaced_by_the_spare_worker(
    kind: str, tmp_path: Path, witness: LossWitness
) -> None:
    """Without it, hosts wait until Ray knows of the death: 15 s by its defaults.

    The first bundle has a replica and a shard, without which no driver goes on.
    """
    drivers: dict[str, Any] = {
        "Downpour": {"driver": Downpour(replicas=2, shards=2, optimizer=SGD(0.02)), "epochs": 60},
        "Sandblaster": {
            "driver": Sandblaster(replicas=2, shards=2, method=LBFGS(gtol=0.0, ftol=0.0, max_iterations=60))
        },
        "AllReduce": {"driver": AllReduce(replicas=2, optimizer=SGD(0.02)), "epochs": 60},
    }
    arguments = drivers[kind]
    with clusters.nodes(3) as (cluster, started):
        lose = witness.lose(lambda: cluster.remove_node(clusters.node_of(started, 0), allow_graceful=False))
        witness.when(lambda progress: progress.step >= 10, lose)
        run = trained(
            on=Ray(strategy="STRICT_SPREAD", spare=1),
            checkpoints=tmp_path / "checkpoints",
            checkpoint_every_s=0.5,
            **arguments,
        )
        assert not clusters.groups()
    assert witness.went_on, witness.texts
    gone = [text for text in witness.texts if "is gone (silent for" in text or "is gone: silent" in text]
    assert gone, witness.texts
    if kind == "Downpour":
        assert evaluate(run, toy.data()).accuracy > 0.9
    else:  # whatever was done is done again, and the bits are those of a run in which nobody died
        assert_same(run, trained(on=None, **arguments))


def test_training_goes_on_while_ray_does_not_know_that_a_node_is_gone(
    tmp_path: Path, witness: LossWitness
) -> None:
    """The shard begins again in the other bundle, and the replica when Ray has a node for its bundle."""
    with clusters.nodes(3) as (cluster, started):
        lose = witness.lose(lambda: cluster.remove_node(clusters.node_of(started, 1), allow_graceful=False))
        witness.when(lambda progress: progress.step >= 25, lose)
        witness.when_said("replica 1 begins again", lambda: signal.raise_signal(signal.SIGINT))
        with pytest.raises(Interrupted) as stopped:
            trained(
                Downpour(replicas=2, shards=2, optimizer=SGD(0.02)),
                "ray:STRICT_SPREAD",
                epochs=100_000,
                checkpoints=tmp_path / "checkpoints",
                checkpoint_every_s=0.5,
            )
        assert not clusters.groups()
    assert witness.went_on, witness.texts
    assert witness.index("the Ray actor of bundle 1 is gone: ") < witness.index("replica 1 begins again")
    assert evaluate(stopped.value.run, toy.data()).accuracy > 0.9


def test_another_actor_begins_where_one_was_killed(tmp_path: Path, witness: LossWitness) -> None:
    with clusters.nodes(1):
        lose = witness.lose(lambda: clusters.actors()[0].send_signal(signal.SIGKILL))
        witness.when(lambda progress: progress.step >= 25, lose)
        run = trained(
            Downpour(optimizer=SGD(0.02)),
            "ray",
            epochs=60,
            checkpoints=tmp_path / "checkpoints",
            checkpoint_every_s=0.5,
        )
    assert witness.went_on, witness.texts
    assert evaluate(run, toy.data()).accuracy > 0.9


def test_an_actor_trains_in_its_own_placement_group() -> None:
    """As a trial of Ray Tune does: the first bundle is the actor's own, the others are for its workers."""
    with clusters.nodes(2):
        import ray
        from ray.util import placement_group, remove_placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        group = placement_group([{"CPU": 0.5}, {"CPU": 2}, {"CPU": 1}])
        scheduled = PlacementGroupSchedulingStrategy(
            group, placement_group_bundle_index=0, placement_group_capture_child_tasks=True
        )

        class Trial:
            def work(self, replicas: int) -> tuple[float, int]:
                driver = Downpour(replicas=replicas)
                run = trained(driver, "ray", epochs=20, show="nothing")
                return float(evaluate(run, toy.data()).accuracy), len(clusters.groups())

        trial = ray.remote(num_cpus=0.5)(Trial).options(scheduling_strategy=scheduled).remote()
        accuracy, found = ray.get(trial.work.remote(1))
        assert accuracy > 0.9 and found == 1
        with pytest.raises(
            RunFailed,
            match=r"the placement group of this task or actor cannot hold this run: it needs 2 x .CPU 2.; "
            r"bundle 0 has CPU 0; bundle 1 has CPU 2; bundle 2 has CPU 1",
        ):
            ray.get(trial.work.remote(2))
        ray.kill(trial)
        remove_placement_group(group)


def test_what_no_node_has_is_refused() -> None:
    with clusters.nodes(2):
        for on, driver, message in [
            (
                Ray(strategy="STRICT_SPREAD"),
                Downpour(replicas=3),
                r"Ray cannot place this run by STRICT_SPREAD: it needs 1 x \(CPU 2, memory [^)]*\), "
                r"2 x \(CPU 2, memory [^)]*\); .* has CPU [02], memory .*; .* has CPU [02], memory .*; ",
            ),
            (
                Ray(bundles=[{"CPU": 2, "odd": 1}]),
                Downpour(),
                r"by PACK: it needs 1 x \(CPU 2, odd 1\); .*CPU 2, odd 0",
            ),
        ]:
            with pytest.raises(RunFailed, match=message):
                trained(driver, on, epochs=1, show="nothing")
            assert not clusters.groups()


def test_the_command_trains_where_ray_address_says_and_ctrl_c_ends_all(tmp_path: Path) -> None:
    with clusters.nodes(2) as (cluster, _):
        arguments = ["train", str(Path(toy.__file__)), "--on", "ray:SPREAD", "--machines", "2"]
        arguments += ["--batch", "8", "--checkpoints", str(tmp_path / "kept"), "--epochs", "100000"]
        with Program(*arguments, env={"RAY_ADDRESS": cluster.address}) as command:
            command.wait_for(f"uses the Ray cluster at {cluster.address}")
            command.wait_for("worker 'bundle 0' joined from tcp://")
            command.wait_for("staleness")
            command.signal(signal.SIGINT)
            assert command.end() == 130, command.output
        assert not psutil.wait_procs(clusters.actors(), timeout=10.0)[1]
        assert not clusters.groups()
