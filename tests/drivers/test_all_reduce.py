"""Synchronous SGD by all-reduce: bytes, bits, resuming under other plans and drivers, and the command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from partita.engine import (
    SGD,
    Adagrad,
    Adam,
    AllReduce,
    Downpour,
    Hierarchical,
    Optimizer,
    Ring,
    Run,
    Server,
    Tree,
    evaluate,
    predict,
    train,
)
from partita.engine.drivers.replica_links import fastest_of
from partita.engine.parameters.compression import PowerSGD
from partita.engine.protocol import views
from partita.engine.protocol.exchange import Group, Member, Numbers, bytes_sent
from partita.engine.protocol.names import part_name
from partita.engine.protocol.replica_messages import View
from partita.engine.runtime.buffers import layout_of
from partita.layers import Activation, Dense, Network, SoftmaxCrossEntropy
from partita.partitioner import Cluster, Plan, Whole, partition
from tests.drivers.conftest import WatchedThreads
from tests.faults import toy
from tests.faults.helpers import Command

STEPS = 5


def plan_of(machines: int = 1, *, batch: int = 8) -> Plan:
    return partition(toy.network(), Cluster.local(machines=machines), batch=batch, strategy="balanced")


def trained(
    plan: Plan, driver: AllReduce | Downpour, *, epochs: int = 1, examples: int = 128, **given: Any
) -> Run:
    return train(plan, toy.data(examples), driver=driver, epochs=epochs, show="nothing", **given)


def sent(box: Any) -> int:
    """The bytes that a part has sent in exchanges."""
    counters = box.counters
    return int(sum(counters.sent_of(kind).payload_bytes for kind in ("PartialChunk", "FinalChunk")))


@pytest.mark.parametrize("machines", [1, 2])
@pytest.mark.parametrize("replicas", [2, 3, 7])
def test_a_ring_sends_its_share_of_the_gradient_exactly(
    replicas: int, machines: int, on_threads: list[WatchedThreads]
) -> None:
    """2(N-1)/N S for each replica, where N divides the machines' vectors; else less its own two segments."""
    plan = plan_of(machines)
    run = trained(plan, AllReduce(replicas=replicas, by=Ring()), examples=8 * replicas * STEPS)
    assert run.steps == (STEPS,) * replicas
    layout, (launcher,) = layout_of(plan, shards=1), on_threads
    for machine in range(machines):
        size = layout.machine_size(machine)
        for rank in range(replicas):
            found = sent(launcher.boxes[part_name(rank, machine)])
            cuts = [segment * size // replicas for segment in range(replicas + 1)]
            own, next_ = (cuts[s % replicas + 1] - cuts[s % replicas] for s in (rank, rank + 1))
            assert found == 4 * STEPS * (2 * size - own - next_)
            if size % replicas == 0:
                assert found * replicas == STEPS * 2 * (replicas - 1) * 4 * size


@pytest.mark.parametrize("by", [Tree(), Hierarchical(), Server()], ids=repr)
def test_every_algorithm_sends_what_its_formula_says(by: Any, on_threads: list[WatchedThreads]) -> None:
    plan, replicas = plan_of(), 3
    trained(plan, AllReduce(replicas=replicas, by=by), examples=8 * replicas * STEPS)
    (launcher,) = on_threads
    names = [part_name(replica, 0) for replica in range(replicas)]
    group = Group(tuple(Member(name) for name in names), names[0])
    numbers = Numbers(layout_of(plan, shards=1).size)
    for rank, name in enumerate(names):
        assert sent(launcher.boxes[name]) == STEPS * bytes_sent(by, rank, group.machines, numbers)


def test_by_auto_has_the_bits_of_the_algorithm_that_it_prints(
    on_threads: object, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, replicas = plan_of(), 4
    auto, tree = (
        train(plan, toy.data(64), driver=AllReduce(replicas=replicas, by=by), epochs=1, show="lines")
        for by in ("auto", Tree())
    )
    size = 4 * layout_of(plan, shards=1).size
    shown = f"all-reduce by Tree() for 4 replicas on 4 computers, {size} bytes; predicted: Ring() "
    assert capsys.readouterr().err.count(shown) == 1
    for name, numbers in tree.parameters.items():
        assert auto.parameters[name].tobytes() == numbers.tobytes(), name


def test_auto_is_of_whole_gradients_and_needs_a_plan() -> None:
    with pytest.raises(ValueError, match="chooses by the bytes of whole gradients, and PowerSGD"):
        AllReduce(replicas=2, by="auto", compress=PowerSGD(2))
    me = views.Member(0, 0, View(1, (0, 1), 1, 0, 0, 8), views.JoinedBatches(8, 4))
    with pytest.raises(ValueError, match=r"use AllReduce\(...\).fitted\(plan\)"):
        next(AllReduce(replicas=2, by="auto").replica(me))
    assert AllReduce(by="auto").fitted(plan_of()).by == fastest_of(plan_of())
    assert AllReduce(by=Tree()).fitted(plan_of()).by == Tree()


@pytest.mark.slow
def test_a_run_that_is_repeated_has_the_same_bits() -> None:
    driver = AllReduce(replicas=2, optimizer=Adam(0.01))
    one, other = (trained(plan_of(), driver) for _ in range(2))
    for name, numbers in one.parameters.items():
        assert other.parameters[name].tobytes() == numbers.tobytes(), name


def test_fewer_replicas_of_a_larger_batch_are_the_same_run(on_threads: object) -> None:
    """Also where an epoch does not end with a full step."""
    four = trained(plan_of(batch=4), AllReduce(replicas=4, optimizer=Adagrad(0.1)), examples=101)
    one = trained(plan_of(batch=16), AllReduce(replicas=1, optimizer=Adagrad(0.1)), examples=101)
    for name, numbers in four.parameters.items():
        np.testing.assert_allclose(one.parameters[name], numbers, rtol=1e-4, atol=1e-6, err_msg=name)
    assert four.steps == (7, 7, 7, 7) and one.steps == (7,)


def test_a_run_learns_is_saved_and_predicts(tmp_path: Path) -> None:
    run = trained(plan_of(2), AllReduce(replicas=2, optimizer=Adagrad(0.2)), epochs=15, examples=256)
    assert evaluate(run, toy.data()).accuracy > 0.9
    assert [entry.examples for entry in run.history if hasattr(entry, "examples")][-1] == 15 * 256
    again = Run.load(run.save(tmp_path / "toy.safetensors"), plan_of(1))
    np.testing.assert_allclose(predict(again, toy.data()), predict(run, toy.data()), rtol=1e-4, atol=1e-5)


def test_a_machine_without_parameters_takes_part(on_threads: object) -> None:
    net = Network("toy")
    middle = Activation("tanh", name="middle")(Dense(12, name="hidden")(net.input("picture", shape=(8,))))
    net.loss = SoftmaxCrossEntropy()(Dense(3, name="scores")(middle), net.target("digit"))
    cuts = {"hidden": Whole(0), "middle": Whole(1), "scores": Whole(0)}
    plan = partition(net, Cluster.local(machines=2), batch=8, cuts=cuts)
    assert layout_of(plan, shards=1).machine_size(1) == 0
    optimizer = Adam(0.01, clip_norm=1.0)
    whole, parts = (
        trained(plan, AllReduce(replicas=2, optimizer=optimizer, shard_optimizer=sharded))
        for sharded in (False, True)
    )
    for name, numbers in whole.parameters.items():
        assert parts.parameters[name].tobytes() == numbers.tobytes(), name


# Resuming


def resumed(folder: Path, before: AllReduce | Downpour, after: AllReduce | Downpour) -> tuple[Run, Run]:
    """A run of two epochs of which the second is of another driver and plan."""
    first = trained(plan_of(2), before, checkpoints=folder)
    return first, trained(plan_of(1), after, epochs=2, checkpoints=folder, resume=True)


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.slow
def test_a_run_that_is_resumed_has_the_bits_of_one_that_was_not(sharded: bool, tmp_path: Path) -> None:
    driver = AllReduce(replicas=2, optimizer=Adam(0.01), shard_optimizer=sharded)
    plan = plan_of(2)
    trained(plan, driver, checkpoints=tmp_path)
    again = trained(plan, driver, epochs=2, checkpoints=tmp_path, resume=True)
    whole = trained(plan, driver, epochs=2)
    assert again.steps == whole.steps == (16, 16)
    for name, numbers in whole.parameters.items():
        assert again.parameters[name].tobytes() == numbers.tobytes(), name


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (AllReduce(replicas=2, optimizer=Adam(0.01)), AllReduce(replicas=1, optimizer=Adam(0.01))),
        (
            AllReduce(replicas=2, optimizer=Adam(0.01), shard_optimizer=True),
            AllReduce(replicas=2, optimizer=Adam(0.01)),
        ),
    ],
    ids=["fewer replicas", "a state that was sharded"],
)
def test_a_run_goes_on_under_another_plan_and_another_number_of_replicas(
    before: AllReduce, after: AllReduce, tmp_path: Path, on_threads: object
) -> None:
    """Its second epoch is that of a run that begins with these parameters and this state."""
    first, second = resumed(tmp_path, before, after)
    assert first.steps == (8,) * before.replicas
    assert second.steps == (128 * 2 // (8 * after.replicas),) * after.replicas
    whole = trained(plan_of(1), after, epochs=2) if after.replicas == before.replicas else None
    for name, numbers in second.parameters.items():
        assert np.isfinite(numbers).all() and (numbers != first.parameters[name]).any(), name
        if whole is not None:
            np.testing.assert_allclose(numbers, whole.parameters[name], rtol=1e-3, atol=1e-5, err_msg=name)


OPTIMIZER: Optimizer = Adagrad(0.1)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (AllReduce(replicas=2, optimizer=OPTIMIZER), Downpour(replicas=1, shards=2, optimizer=OPTIMIZER)),
        (Downpour(replicas=2, shards=2, optimizer=OPTIMIZER), AllReduce(replicas=2, optimizer=OPTIMIZER)),
    ],
    ids=["then Downpour", "after Downpour"],
)
def test_drivers_go_on_with_each_others_checkpoints(
    before: AllReduce | Downpour, after: AllReduce | Downpour, tmp_path: Path, on_threads: object
) -> None:
    first, second = resumed(tmp_path, before, after)
    losses = [evaluate(run, toy.data(128)).loss for run in (first, second)]
    assert losses[1] < losses[0]
    assert second.steps == (16 * 2 // after.replicas,) * after.replicas


def test_a_checkpoint_of_another_optimizer_is_refused(tmp_path: Path, on_threads: object) -> None:
    trained(plan_of(), AllReduce(optimizer=Adam(0.01)), checkpoints=tmp_path)
    with pytest.raises(ValueError, match="resume with the same optimizer"):
        trained(plan_of(), AllReduce(optimizer=SGD(0.01)), epochs=2, checkpoints=tmp_path, resume=True)


# The command


@pytest.mark.slow
def test_the_command_trains_and_resumes(tmp_path: Path) -> None:
    file = str(Path(toy.__file__))
    options = ("train", file, "--driver", "all-reduce", "--replicas", "2", "--machines", "1")
    for epochs, more in ((2, ()), (3, ("--resume",))):
        with Command(*options, "--epochs", str(epochs), *more, folder=tmp_path) as command:
            code, _ = command.end()
        assert code == 0, command.said
    assert any("resumed from checkpoint" in line for line in command.said), command.said
