"""Parts under Sandblaster, played by a coordinator and shards of the test: what they compute, and when."""

from __future__ import annotations

import math
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest

from partita.engine.protocol import Message
from partita.engine.protocol.batch_messages import (
    Assignment,
    AssignmentResult,
    Contribution,
    ContributionAck,
    FetchPoint,
    Point,
)
from partita.engine.protocol.commands import Portions
from partita.engine.protocol.events import Received, Tick
from partita.engine.protocol.host import PeersChanged
from partita.engine.protocol.messages import Heartbeat
from partita.engine.protocol.names import COORDINATOR, shard_name
from partita.engine.runtime.portion_feed import PortionOrder
from partita.engine.runtime.task import HostContext
from partita.engine.transport import Counters, Payload
from partita.layers import Conv2D, Dense, Graph, HalfSquaredError, MaxPool2D, Network, SoftmaxCrossEntropy
from partita.partitioner import Cluster, Plan, RowSplit, Whole, partition
from tests.faults import toy
from tests.runtime.replica import (
    ALL,
    BATCH,
    EXAMPLES,
    SHARDS,
    Arrays,
    Replica,
    assert_same,
    parameters_of,
    toy_data,
    truth,
)
from tests.runtime.roles import PlayedRole


@pytest.fixture
def replica_of(tmp_path: Path, request: pytest.FixtureRequest) -> Any:
    def make(plan: Plan, data: Arrays, *, shuffled: bool = False) -> Replica:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        replica = Replica(plan, data, folder, shuffled=shuffled)
        request.addfinalizer(replica.close)
        return replica

    return make


def two_losses() -> Graph:
    """Pictures, filters, and a loss in the middle beside the one at the end."""
    net = Network("two")
    filters = Conv2D(3, 3, activation="relu", padding="same")(net.input("picture", shape=(6, 6, 1)))
    hidden = Dense(4, activation="tanh", name="hidden")(MaxPool2D(2)(filters))
    middle = HalfSquaredError()(hidden, net.target("code"))
    net.loss = (middle, SoftmaxCrossEntropy()(Dense(3, name="scores")(hidden), net.target("digit")))
    return net.graph()


def two_losses_data() -> Arrays:
    rng = np.random.default_rng(2)
    return {
        "picture": rng.normal(size=(EXAMPLES, 6, 6, 1)),
        "code": rng.normal(size=(EXAMPLES, 4)),
        "digit": rng.integers(0, 3, EXAMPLES),
    }


def dense_plan(
    machines: int = 1, *, precision: str = "float64", micro_batches: int = 1, cuts: Any = None
) -> Plan:
    return partition(
        toy.network(),
        Cluster.local(machines),
        batch=BATCH,
        precision=precision,
        micro_batches=micro_batches,
        cuts=cuts,
        strategy="balanced",
    )


PLANS = {
    "alone": dense_plan(),
    "micro-batches": dense_plan(micro_batches=4),
    "cut": dense_plan(2, cuts={"hidden": RowSplit(2), "scores": RowSplit(2)}),
    "one after another": dense_plan(
        2,
        cuts={"hidden": Whole(0), "scores": Whole(1), "softmax_cross_entropy": Whole(1)},
        micro_batches=2,
    ),
}


@pytest.mark.parametrize("shuffled", [False, True], ids=["in order", "shuffled"])
@pytest.mark.parametrize("name", PLANS)
def test_a_work_unit_is_the_sum_over_its_real_examples(replica_of: Any, name: str, shuffled: bool) -> None:
    plan, data = PLANS[name], toy_data()
    parameters, order = (
        parameters_of(plan),
        PortionOrder(Portions(EXAMPLES, BATCH), seed=5, shuffled=shuffled),
    )
    replica = replica_of(plan, data, shuffled=shuffled)
    replica.begin(1, parameters)
    assignments = [(0, 2), (2, 1), (ALL, ALL), (1, 1)]  # one of the next epoch; all examples; one again
    for assignment, (first, count) in enumerate(assignments):
        replica.schedule(assignment, first, count)
        found = replica.until(assignment)
        chosen = []
        for portion in range(first, first + count):
            numbers = order.chosen(portion, 0, order.real(portion))
            chosen += list(range(EXAMPLES)[numbers] if isinstance(numbers, slice) else numbers)
        loss, gradient = truth(plan, parameters, {name: array[chosen] for name, array in data.items()})
        assert math.fsum(one.loss for one in found) == pytest.approx(loss, rel=1e-12)
        assert_same(replica.gradient(1, first), gradient, times=BATCH)
    assert len(chosen) == BATCH


@pytest.mark.slow
@pytest.mark.parametrize("machines", [1, 2])
def test_pictures_and_two_losses(replica_of: Any, machines: int) -> None:
    plan = partition(
        two_losses(), Cluster.local(machines), batch=BATCH, precision="float64", strategy="balanced"
    )
    data, parameters = two_losses_data(), parameters_of(plan)
    replica = replica_of(plan, data)
    replica.begin(4, parameters)
    replica.schedule(0, 0, ALL)
    loss, gradient = truth(plan, parameters, data)
    assert math.fsum(one.loss for one in replica.until(0)) == pytest.approx(loss, rel=1e-12)
    assert_same(replica.gradient(4, 0), gradient, times=BATCH)


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 1e-5), ("bfloat16", 0.03)])
def test_other_precisions(replica_of: Any, precision: str, tolerance: float) -> None:
    plan, data = dense_plan(precision=precision), toy_data(precision)
    parameters = parameters_of(plan)
    replica = replica_of(plan, data)
    replica.begin(1, parameters)
    replica.schedule(0, 0, ALL)
    (found,) = replica.until(0)
    loss, gradient = truth(plan, parameters, data)
    assert found.loss == pytest.approx(loss, rel=tolerance)
    assert_same(replica.gradient(1, 0), gradient, times=BATCH, tolerance=tolerance)


@pytest.mark.parametrize("name", ["alone", "cut"])
def test_a_work_unit_has_the_same_bits_on_every_replica(replica_of: Any, name: str) -> None:
    """Earlier work units, of the same evaluation or others, change no bit."""
    plan, data = PLANS[name], toy_data()
    fresh, used = replica_of(plan, data), replica_of(plan, data)
    used.begin(1, parameters_of(plan, 3))
    for assignment, (first, count) in enumerate([(2, 1), (0, 3), (1, 1)]):
        used.schedule(assignment, first, count)
        used.until(assignment)
    for replica, evaluation, assignment in ((fresh, 7, 0), (used, 2, 3)):
        replica.begin(evaluation, parameters_of(plan))
        replica.schedule(assignment, 1, 2)
    one, other = fresh.until(0), used.until(3)
    assert [c.loss for c in one] == [c.loss for c in other]
    assert [c.correct for c in one] == [c.correct for c in other]
    assert fresh.taken[7, 1] == used.taken[2, 1] and len(fresh.taken[7, 1]) >= SHARDS


@pytest.mark.parametrize("name", ["alone", "cut"])
@pytest.mark.parametrize("value", [np.nan, 1e308])
def test_a_result_that_is_not_finite_is_reported(replica_of: Any, name: str, value: float) -> None:
    plan = PLANS[name]
    parameters = parameters_of(plan)
    replica = replica_of(plan, toy_data())
    replica.begin(1, {key: value * (array + 1) for key, array in parameters.items()})
    replica.schedule(0, 0, 2)
    assert not math.isfinite(math.fsum(one.loss for one in replica.until(0)))
    assert not np.isfinite(replica.gradient(1, 0)["scores.bias"]).all()
    replica.begin(2, parameters)
    replica.schedule(1, 0, 2)
    assert math.isfinite(math.fsum(one.loss for one in replica.until(1)))
    assert all(np.isfinite(array).all() for array in replica.gradient(2, 0).values())


def test_a_gradient_waits_for_the_one_before(replica_of: Any) -> None:
    """The next turn is computed meanwhile, and no number of the one in flight changes."""
    plan, data = PLANS["alone"], toy_data()
    parameters = parameters_of(plan)
    replica = replica_of(plan, data)
    replica.silent = True
    replica.begin(1, parameters)
    for assignment in range(3):
        replica.schedule(assignment, assignment, 1)
    replica.until(1)
    while len(replica.taken[1, 0]) < SHARDS or not replica.post.empty():
        replica.deliver()
    assert set(replica.taken) == {(1, 0)} and not replica.computed[2]
    first = replica.taken.pop((1, 0))
    replica.roles["part 0.0"].receive(Tick(), 1e9)
    while len(replica.taken[1, 0]) < SHARDS:
        replica.deliver()
    assert replica.taken[1, 0] == first, "said again"
    replica.silent = False
    for shard in range(SHARDS):
        replica.receive("part 0.0", shard_name(shard), ContributionAck(1, 0))
    replica.until(2)
    for assignment in range(3):
        chosen = slice(assignment * BATCH, (assignment + 1) * BATCH)
        _, gradient = truth(plan, parameters, {name: array[chosen] for name, array in data.items()})
        assert_same(replica.gradient(1, assignment), gradient, times=BATCH)


def test_parts_that_know_of_the_end_play_on_for_those_that_do_not(replica_of: Any) -> None:
    """One part receives the next evaluation before it begins an assignment that the other plays."""
    plan, data = PLANS["cut"], toy_data()
    parameters = parameters_of(plan)
    replica = replica_of(plan, data)
    replica.begin(1, parameters)
    replica.schedule(0, 0, 2, to="part 0.0")
    replica.evaluation = 2  # without a point
    replica.schedule(1, 1, 2, to="part 0.1")
    replica.evaluation = 1
    replica.schedule(0, 0, 2, to="part 0.1")
    whole, discarded = sorted(replica.until(0), key=lambda one: math.isnan(one.loss))
    assert math.isfinite(whole.loss) and math.isnan(discarded.loss)
    assert {part for part, _ in replica.taken[1, 0]} == {"part 0.0"}
    replica.begin(2, parameters)
    replica.schedule(1, 1, 2, to="part 0.0")
    replica.until(1)
    chosen = slice(BATCH, EXAMPLES)
    _, gradient = truth(plan, parameters, {name: array[chosen] for name, array in data.items()})
    assert_same(replica.gradient(2, 1), gradient, times=BATCH)


def test_alone_a_turn_that_nobody_wants_is_cut_short(replica_of: Any) -> None:
    plan, data = PLANS["alone"], toy_data()
    replica = replica_of(plan, data)
    replica.begin(1, parameters_of(plan))
    replica.schedule(0, 0, 1 << 40)  # longer than anybody would wait
    assert not replica.computed[0]
    replica.begin(2, parameters_of(plan))
    (result,) = replica.until(0)
    assert math.isnan(result.loss) and not replica.taken


def test_what_comes_before_everybody_is_known_is_kept(replica_of: Any, tmp_path: Path) -> None:
    plan = PLANS["alone"]
    replica = replica_of(plan, toy_data())
    task = replica.tasks[0]
    said: SimpleQueue[Message] = SimpleQueue()
    refused: list[tuple[str, str]] = []
    link = HostContext(
        "part 0.0",
        1,
        lambda to, message, numbers: said.put(message),
        print,
        Counters(),
        lambda sender, why: refused.append((sender, why)),
    )
    role = PlayedRole(task.role(link), link)
    try:
        role.receive(Received(COORDINATOR, 0, Assignment(1, 0, 0, 0, 1)), 0.0)
        role.receive(Received(COORDINATOR, 0, Heartbeat(0, 0.0)), 0.0)
        role.receive(PeersChanged(1, {"shard 0": 0}))
        role.receive(Tick(), 10.0)
        assert said.empty()
        role.receive(PeersChanged(2, {"shard 0": 0, "shard 1": 0}))
        assert [said.get_nowait() for _ in range(2)] == [FetchPoint(0)] * 2
        role.receive(PeersChanged(3, {"shard 0": 0, "shard 1": 1}))
        assert said.get_nowait() == FetchPoint(0), "a shard was started again"
        for overlap in task.layout.shards_of(0):
            numbers = Payload([memoryview(bytes(8 * (overlap.machine_stop - overlap.machine_start)))])
            role.receive(Received(shard_name(overlap.shard), 0, Point(1), numbers), 0.0)
        found = [type(said.get(timeout=60)) for _ in range(5)]
        assert found == [FetchPoint] * 2 + [Contribution] * 2 + [AssignmentResult]
        role.receive(Received(COORDINATOR, 0, AssignmentResult(0, 0, 0, 0.0, 0)), 0.0)
        assert refused == [("coordinator", "'AssignmentResult', which is not for a part of this driver")]
    finally:
        role.close()
