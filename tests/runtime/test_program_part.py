"""Parts under a program driver, whole: machine, body, kernels and vectors, with the test as coordinator."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from partita.engine import LARS, SGD, Adagrad, Adam, Momentum, Optimizer
from partita.engine.protocol.actions import Program
from partita.engine.protocol.exchange import Hierarchical, Ring, Server, Tree
from partita.engine.runtime.buffers import shared_layers
from partita.partitioner import Cluster, Plan, partition
from tests.runtime.members import Members, replicated, sharded
from tests.truth.joined import picture_data, picture_network, trained_alone

EXAMPLES, EPOCHS = 22, 2
RING, PLAIN = Ring(), SGD(0.1)
OPTIMIZERS: list[Optimizer] = [
    SGD(0.1, clip_norm=0.4),
    Momentum(0.1, weight_decay=0.01),
    Adagrad(0.05),
    Adam(0.01),
]


def plan_of(machines: int, *, batch: int = 4, precision: str = "float64") -> Plan:
    cluster = Cluster.local(machines=machines)
    return partition(picture_network(), cluster, batch=batch, precision=precision, strategy="balanced")


def trained(
    folder: Path,
    plan: Plan,
    *,
    replicas: int,
    by: Any = RING,
    optimizer: Optimizer = PLAIN,
    program: Callable[..., Program] = replicated,
    seed: int | None = None,
) -> tuple[dict[str, np.ndarray[Any, Any]], Members]:
    """The parameters, which all replicas have, after some epochs."""
    draw = random.Random(seed)
    folder.mkdir(exist_ok=True)
    members = Members(
        plan,
        picture_data(EXAMPLES),
        folder,
        program=program,
        by=by,
        optimizer=optimizer,
        replicas=replicas,
        pick=(lambda n: 0) if seed is None else draw.randrange,
    )
    try:
        members.publish(1, range(replicas), until=EPOCHS * EXAMPLES)
        members.run()
        found = members.parameters(0)
        for replica in range(1, replicas):
            for name, numbers in members.parameters(replica).items():
                np.testing.assert_array_equal(numbers, found[name], err_msg=f"{name} of replica {replica}")
    finally:
        members.close()
    return found, members


@pytest.mark.parametrize("machines", [1, 2])
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
def test_replicas_are_one_process_on_the_joined_batch(
    optimizer: Optimizer, machines: int, tmp_path: Path
) -> None:
    """Also in the last step of an epoch, where one replica has 2 of 4 examples and another one none."""
    plan = plan_of(machines)
    assert bool(shared_layers(plan, 0)) == (machines > 1), "the filters are cut over the machines"
    found, members = trained(tmp_path, plan, replicas=3, optimizer=optimizer)
    expected = trained_alone(plan, picture_data(EXAMPLES), optimizer, batch=12, epochs=EPOCHS)
    for name, numbers in expected.items():
        np.testing.assert_allclose(found[name], numbers, rtol=1e-10, atol=1e-12, err_msg=name)
    assert members.counted[0] == EPOCHS * EXAMPLES


@pytest.mark.parametrize("by", [Ring(), Tree(), Hierarchical(), Server()], ids=repr)
def test_bits_depend_on_no_order_of_arrival(by: Any, tmp_path: Path) -> None:
    plan = plan_of(2, precision="float32")
    runs = [
        trained(tmp_path / str(seed), plan, replicas=3, by=by, optimizer=Adam(0.01), seed=seed)[0]
        for seed in (None, 1, 2)
    ]
    for name, numbers in runs[0].items():
        assert all(run[name].tobytes() == numbers.tobytes() for run in runs), name


@pytest.mark.parametrize("optimizer", [Adam(0.01), LARS(0.1)], ids=repr)
@pytest.mark.parametrize("machines", [1, 2])
def test_a_sharded_optimizer_has_the_bits_of_one_on_each_replica(
    machines: int, optimizer: Optimizer, tmp_path: Path
) -> None:
    plan = plan_of(machines, precision="bfloat16")
    whole, _ = trained(tmp_path / "whole", plan, replicas=3, optimizer=optimizer)
    parts, _ = trained(tmp_path / "parts", plan, replicas=3, optimizer=optimizer, program=sharded)
    for name, numbers in whole.items():
        assert parts[name].tobytes() == numbers.tobytes(), name


@pytest.mark.parametrize(("program", "writers"), [(replicated, (0,)), (sharded, (0, 1, 2))])
def test_a_run_goes_on_from_its_files_with_the_same_bits(
    program: Callable[..., Program], writers: tuple[int, ...], tmp_path: Path
) -> None:
    """Also with the plan of one machine instead of two, within rounding."""
    plan, data, optimizer = plan_of(2), picture_data(EXAMPLES), Adam(0.01)
    whole, _ = trained(tmp_path / "whole", plan, replicas=3, program=program, optimizer=optimizer)
    (folder := tmp_path / "files").mkdir()
    first = Members(plan, data, folder, program=program, by=RING, optimizer=optimizer, replicas=3)
    try:
        first.save(7, 1, writers=writers)
        first.publish(1, range(3), until=EPOCHS * EXAMPLES)
        first.run()
        store = first.commit(7, 1, writers=writers)
    finally:
        first.close()
    written = store.open(7, {name: values.shape for name, values in whole.items()})
    assert {record.updates for record in written.records.values()} == {1}
    for machines in (2, 1):
        second = Members(
            plan_of(machines), data, folder, program=program, by=RING, optimizer=optimizer,
            replicas=3, checkpoint=7,
        )  # fmt: skip
        try:
            assert {machine.version for machine in second.machines.values()} == {1}
            second.publish(1, range(3), step=1, points=1, position=12, until=EPOCHS * EXAMPLES)
            second.run()
            for name, numbers in second.parameters(1).items():
                if machines == 2:
                    assert numbers.tobytes() == whole[name].tobytes(), name
                np.testing.assert_allclose(numbers, whole[name], rtol=1e-10, atol=1e-12, err_msg=name)
        finally:
            second.close()


def test_a_sharded_state_that_nobody_has_updated_is_written_once(tmp_path: Path) -> None:
    """A run that is stopped, or whose writers die, right after it was resumed."""
    members = Members(
        plan_of(2),
        picture_data(EXAMPLES),
        tmp_path,
        program=sharded,
        by=RING,
        optimizer=PLAIN,
        replicas=3,
    )
    try:
        first = members.parameters(1)
        members.save(1, 0, writers=(0, 1, 2))
        members.publish(1, range(3), until=EXAMPLES)
        store = members.commit(1, 0, writers=(0, 1, 2))
    finally:
        members.close()
    found = store.open(1, {name: values.shape for name, values in first.items()}).parameters()
    for name, numbers in first.items():
        assert found[name].tobytes() == numbers.tobytes(), name
