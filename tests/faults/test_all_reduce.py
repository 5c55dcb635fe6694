"""SIGKILL and SIGSTOP under all-reduce: the run ends with the bits of one to which nothing happened."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import psutil
import pytest

from partita.engine import (
    SGD,
    Adam,
    AllReduce,
    Interrupted,
    LossScale,
    Run,
    RunFailed,
    Server,
    Tree,
    evaluate,
    train,
)
from partita.engine.parameters.compression import Compressor, PowerSGD, TopK
from partita.engine.parameters.vector import Vector
from partita.engine.protocol.coordinator_effects import Progress
from partita.engine.run.metrics import TrainingProgress
from partita.partitioner import Cluster, Whole, partition
from tests.faults import toy
from tests.faults.helpers import Command, Witness, hosts_of, sigint

EPOCHS = 160  # a report comes after 0.2 s: a host that is killed then is missed before the run ends
LONG = 400  # so many steps are done before the first checkpoint, and after Ctrl-C
SHORT = 50
PER_EPOCH = 256 // (2 * 8)  # steps of two replicas
STEPS = EPOCHS * PER_EPOCH


def train_toy(
    folder: Path | None = None,
    *,
    machines: int = 1,
    sharded: bool = False,
    epochs: int = EPOCHS,
    resume: bool = False,
) -> Run:
    plan = partition(toy.network(), Cluster.local(machines=machines), batch=8, strategy="balanced")
    driver = AllReduce(replicas=2, optimizer=Adam(0.01), shard_optimizer=sharded)
    every_s = 0.3 if folder is not None else 30.0
    return train(
        plan,
        toy.data(),
        driver=driver,
        epochs=epochs,
        checkpoints=folder,
        checkpoint_every_s=every_s,
        resume=resume,
    )


@cache
def undisturbed(machines: int, epochs: int = EPOCHS) -> Mapping[str, Vector]:
    """The parameters of a run to which nothing happens; that is also a test of sharded ones."""
    return train_toy(machines=machines, epochs=epochs).parameters


def assert_same(run: Run, *, machines: int = 1, epochs: int = EPOCHS) -> None:
    assert run.steps == (epochs * PER_EPOCH,) * 2
    for name, numbers in undisturbed(machines, epochs).items():
        assert run.parameters[name].tobytes() == numbers.tobytes(), name


def kill(*names: str) -> Callable[[], None]:
    """Kills hosts of this process; all of them if none is named."""

    def act() -> None:
        hosts = hosts_of(os.getpid())
        for name in names or tuple(hosts):
            hosts[name].kill()

    return act


@pytest.mark.slow
@pytest.mark.parametrize("machines", [1, 2])
def test_a_replica_that_is_killed_costs_time_and_no_bit(witness: Witness, machines: int) -> None:
    undisturbed(machines)
    witness.when(lambda progress: progress.step > STEPS // 4, kill("part 1.0"))
    run = train_toy(machines=machines)
    assert witness.index("part 1.0: its process was ended by SIGKILL; replica 1 is started again")
    assert_same(run, machines=machines)


@pytest.mark.slow
@pytest.mark.parametrize("compress", [TopK(0.1, 0.5, warm_up=SHORT * PER_EPOCH), PowerSGD(1)], ids=repr)
def test_compressed_gradients_have_the_same_bits_after_a_kill(
    witness: Witness, tmp_path: Path, compress: Compressor
) -> None:
    """What a replica had not sent is in the checkpoint to which all go back."""
    plan = partition(toy.network(), Cluster.local(machines=1), batch=8)
    driver = AllReduce(replicas=2, optimizer=SGD(0.05), compress=compress)
    expected = train(plan, toy.data(), driver=driver, epochs=SHORT)
    witness.when(lambda progress: progress.step > SHORT * PER_EPOCH // 2, kill("part 1.0"))
    settings = {"checkpoints": tmp_path, "checkpoint_every_s": 0.1}
    run = train(plan, toy.data(), driver=driver, epochs=SHORT, **settings)  # type: ignore[arg-type]
    assert witness.index("all replicas are started again from checkpoint")
    for name, numbers in expected.parameters.items():
        assert run.parameters[name].tobytes() == numbers.tobytes(), name


@pytest.mark.slow
@pytest.mark.parametrize("name", ["part 0.0", "part 0.1", "part 1.1"])
def test_any_part_may_be_killed_again_and_again(witness: Witness, name: str) -> None:
    undisturbed(2)
    for quarter in (1, 2, 3):
        witness.when(
            lambda progress, least=quarter * STEPS // 4: progress.step > least,  # type: ignore[misc]
            kill(name),
        )
    assert_same(train_toy(machines=2), machines=2)
    assert sum("is started again" in text for text in witness.texts) == 3


@pytest.mark.slow
def test_a_part_that_is_killed_in_float16_goes_on_with_the_scale_of_the_others(witness: Witness) -> None:
    """The scale rises and falls all the time, so that another one would skip other steps."""
    cluster = Cluster.local(machines=2)
    plan = partition(toy.network(), cluster, batch=8, precision="float16", strategy="balanced")
    scale = LossScale(start=2.0**24, double_after=3)
    driver = AllReduce(replicas=2, optimizer=Adam(0.01), loss_scale=scale)
    expected = train(plan, toy.data(), driver=driver, epochs=40)
    for name, step in (("part 0.1", 10 * PER_EPOCH), ("part 1.0", 20 * PER_EPOCH)):
        witness.when(lambda progress, least=step: progress.step > least, kill(name))  # type: ignore[misc]
    run = train(plan, toy.data(), driver=driver, epochs=40)
    assert sum("is started again" in text for text in witness.texts) == 2
    assert run.loss_scale == expected.loss_scale and expected.loss_scale is not None
    assert expected.loss_scale.skipped > 20
    for name, numbers in expected.parameters.items():
        assert run.parameters[name].tobytes() == numbers.tobytes(), name


@pytest.mark.slow
def test_a_pipeline_of_micro_batches_starts_anew_with_the_same_bits(witness: Witness) -> None:
    """Tensors and credits of a step that was dropped have no effect on the step that follows."""
    cuts = {"hidden": Whole(0), "scores": Whole(1)}
    plan = partition(toy.network(), Cluster.local(machines=2), batch=8, cuts=cuts, micro_batches=2)
    driver = AllReduce(replicas=2, optimizer=Adam(0.01))
    expected = train(plan, toy.data(), driver=driver, epochs=EPOCHS)
    for name, step in (("part 0.1", STEPS // 4), ("part 1.0", STEPS // 2)):
        witness.when(lambda progress, least=step: progress.step > least, kill(name))  # type: ignore[misc]
    run = train(plan, toy.data(), driver=driver, epochs=EPOCHS)
    for name, numbers in expected.parameters.items():
        assert run.parameters[name].tobytes() == numbers.tobytes(), name


@contextmanager
def storm(seed: int) -> Iterator[list[str]]:
    """Kills and stops hosts of this process at random; what it has done."""
    draw, over, done = random.Random(seed), threading.Event(), list[str]()

    def act() -> None:
        while not over.wait(draw.uniform(0.3, 1.5)):
            hosts = hosts_of(os.getpid())
            for name in draw.sample(sorted(hosts), min(len(hosts), draw.choice([1, 1, 1, 2, 3]))):
                how, seconds = draw.choice(["kill", "kill", "suspend"]), draw.uniform(0.1, 1.5)
                with suppress(psutil.Error):
                    getattr(hosts[name], how)()
                    done.append(f"{how} {name}")
                if how == "suspend":
                    over.wait(seconds)
                    with suppress(psutil.Error):
                        hosts[name].resume()

    thread = threading.Thread(target=act)
    thread.start()
    try:
        yield done
    finally:
        over.set()
        thread.join()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_any_kills_and_stops_cost_time_and_no_bit(witness: Witness, seed: int) -> None:
    plan = partition(toy.network(), Cluster.local(machines=2), batch=8, strategy="balanced")
    driver = AllReduce(replicas=3, by=Tree(), optimizer=Adam(0.01))
    expected = train(plan, toy.data(), driver=driver, epochs=EPOCHS)
    with storm(seed) as done:
        run = train(plan, toy.data(), driver=driver, epochs=EPOCHS)
    assert len(done) > 3, "nothing happened"
    for name, numbers in expected.parameters.items():
        assert run.parameters[name].tobytes() == numbers.tobytes(), (name, done)


@pytest.mark.slow
@pytest.mark.parametrize(("machines", "epochs"), [(1, LONG), (2, EPOCHS)])
def test_all_hosts_killed_at_once_go_on_from_a_checkpoint(
    witness: Witness, machines: int, epochs: int, tmp_path: Path
) -> None:
    undisturbed(machines, epochs)
    witness.when(lambda progress: any(tmp_path.glob("[0-9]*/manifest.json")), kill())
    run = train_toy(tmp_path, machines=machines, epochs=epochs)
    assert_same(run, machines=machines, epochs=epochs)


@pytest.mark.slow
def test_all_hosts_killed_before_a_checkpoint_start_anew(witness: Witness) -> None:
    undisturbed(1)
    witness.when(lambda progress: progress.step > 20, kill())
    assert_same(train_toy())


def of_replicas(replicas: int, *, machines: int) -> Run:
    plan = partition(toy.network(), Cluster.local(machines=machines), batch=8, strategy="balanced")
    driver = AllReduce(replicas=replicas, optimizer=Adam(0.01))
    return train(plan, toy.data(), driver=driver, epochs=EPOCHS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("replicas", "machines", "survivors"),
    [
        (2, 1, ("part 1.0",)),
        (3, 1, ("part 2.0",)),
        (2, 2, ("part 0.0", "part 0.1")),
        (2, 2, ("part 0.1", "part 1.0")),
        (3, 2, ("part 2.0", "part 2.1")),
        (3, 2, ("part 1.0", "part 2.1")),
    ],
)
def test_one_state_that_is_left_alive_is_enough_without_a_disk(
    witness: Witness, replicas: int, machines: int, survivors: tuple[str, ...]
) -> None:
    """All others are killed at once: one replica is left, or of each machine the part of some replica."""
    expected = of_replicas(replicas, machines=machines).parameters
    reached: list[int] = []

    def kill_others() -> None:
        hosts = hosts_of(os.getpid())
        reached.append(max(p.step for p in witness.seen if isinstance(p, Progress)))
        for name in hosts.keys() - {*survivors}:
            hosts[name].kill()

    least = EPOCHS * (256 // (8 * replicas)) // 3
    witness.when(lambda progress: progress.step > least, kill_others)
    before = len(witness.seen)
    run = of_replicas(replicas, machines=machines)
    later = [p.step for p in witness.seen[before:] if isinstance(p, Progress)]
    assert not any("no whole state is left" in text for text in witness.texts)
    assert min(step for step in later[later.index(reached[0]) :]) >= reached[0] - 1, "it has gone back"
    for name, numbers in expected.items():
        assert run.parameters[name].tobytes() == numbers.tobytes(), name


@pytest.mark.slow
@pytest.mark.parametrize(("machines", "epochs"), [(1, LONG), (2, EPOCHS)])
def test_a_death_with_a_sharded_optimizer_leads_back_to_the_last_checkpoint(
    witness: Witness, machines: int, epochs: int, tmp_path: Path
) -> None:
    undisturbed(machines, epochs)
    witness.when(
        lambda progress: any(tmp_path.glob("[0-9]*/manifest.json")) and progress.step > 30, kill("part 1.0")
    )
    run = train_toy(tmp_path, machines=machines, epochs=epochs, sharded=True)
    assert witness.index("all replicas are started again from ")  # a checkpoint, if it was known by then
    assert_same(run, machines=machines, epochs=epochs)


@pytest.mark.slow
@pytest.mark.parametrize("taken_for_dead", [False, True])
def test_a_stopped_replica_costs_time_and_no_bit(witness: Witness, taken_for_dead: bool) -> None:
    """A part is suspected after two seconds of silence, and started again after four."""
    undisturbed(1)
    stopped: list[psutil.Process] = []

    def stop() -> None:
        stopped.append(hosts_of(os.getpid())["part 1.0"])
        stopped[0].suspend()

    witness.when(lambda progress: progress.step > STEPS // 4, stop)
    if not taken_for_dead:
        witness.when_said("part 1.0 has been silent", lambda: stopped[0].resume())
    run = train_toy()
    assert any("is started again" in text for text in witness.texts) == taken_for_dead
    assert_same(run)


@pytest.mark.slow
@pytest.mark.parametrize("sharded", [False, True])
def test_ctrl_c_keeps_a_checkpoint_and_the_rest_has_the_bits_of_the_whole(
    witness: Witness, sharded: bool, tmp_path: Path
) -> None:
    undisturbed(2, LONG)
    witness.when(lambda progress: progress.step > STEPS // 2, lambda: signal.raise_signal(signal.SIGINT))
    with sigint(signal.default_int_handler), pytest.raises(Interrupted) as interrupted:
        train_toy(tmp_path, machines=2, sharded=sharded, epochs=LONG)
    done = interrupted.value.run.steps
    assert STEPS // 4 <= done[0] == done[1] < LONG * PER_EPOCH
    assert_same(
        train_toy(tmp_path, machines=2, sharded=sharded, epochs=LONG, resume=True), machines=2, epochs=LONG
    )
    assert any("resumed from checkpoint" in text and f"at step {sum(done)}" in text for text in witness.texts)


@pytest.mark.slow
def test_a_run_whose_coordinator_is_killed_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    """The coordinator runs in the process of the command, and all hosts end with it."""
    sizes = ("--machines", "1", "--batch", "8", "--replicas", "2", "--epochs", str(LONG))
    driver = ("--driver", "all-reduce", "--optimizer", "adam", "--learning-rate", "0.01")
    kept = ("--checkpoints", "kept", "--checkpoint-every", "0.2")
    with Command("train", str(Path(toy.__file__)), *sizes, *driver, *kept, folder=tmp_path) as command:
        while not any((tmp_path / "kept").glob("[0-9]*/manifest.json")):
            assert command.is_running, command.said
        hosts = command.hosts
        command.kill()
        command.end()
    _, alive = psutil.wait_procs(hosts.values(), timeout=10)
    assert not alive
    assert_same(train_toy(tmp_path / "kept", epochs=LONG, resume=True), epochs=LONG)


# Elastic runs


@pytest.mark.slow
def test_a_replica_that_is_killed_in_an_elastic_run_joins_again_and_no_example_is_left_out(
    witness: Witness,
) -> None:
    witness.when(lambda progress: progress.step > LONG * PER_EPOCH // 4, kill("part 1.0"))
    plan = partition(toy.network(), Cluster.local(), batch=8)
    driver = AllReduce(elastic=(1, 2), optimizer=Adam(0.01))
    run = train(plan, toy.data(), driver=driver, epochs=LONG)
    assert run.steps == (LONG * PER_EPOCH,) * 2, "as if both had always taken part"
    joined = [text for text in witness.texts if text.startswith("view ") and "replicas 0, 1" in text]
    assert joined, witness.texts
    assert isinstance(last := run.history[-1], TrainingProgress)
    assert last.examples >= LONG * 256, "steps that were dropped are computed again"
    assert evaluate(run, toy.data()).accuracy > 0.95


@pytest.mark.slow
def test_a_step_leaves_out_a_replica_that_is_stopped(witness: Witness) -> None:
    """With a backup worker a step does not wait for the last gradient."""
    stopped: list[psutil.Process] = []

    def stop() -> None:
        stopped.append(hosts_of(os.getpid())["part 2.0"])
        stopped[0].suspend()

    plan = partition(toy.network(), Cluster.local(), batch=8)
    witness.when(lambda progress: progress.step > 50, stop)
    witness.when_said("part 2.0 has been silent", lambda: stopped[0].resume())
    driver = AllReduce(replicas=3, by=Server(), backup_workers=1, optimizer=Adam(0.01))
    run = train(plan, toy.data(), driver=driver, epochs=LONG)
    assert not any("is started again" in text for text in witness.texts)
    assert evaluate(run, toy.data()).accuracy > 0.95


@pytest.mark.parametrize("machines", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_numbers_that_are_not_finite_end_the_run_with_a_sentence(machines: int) -> None:
    plan = partition(toy.network(), Cluster.local(machines=machines), batch=8, strategy="balanced")
    driver = AllReduce(replicas=2, optimizer=SGD(1e38))
    with pytest.raises(RunFailed, match=r"in step \d+.* not finite.*lower the learning rate"):
        train(plan, toy.data(), driver=driver, epochs=2, show="nothing")
