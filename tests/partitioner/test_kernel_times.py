"""Measured times of kernels, estimates for others, and which kernels are the same."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.layers import (
    Activation,
    BoxSet,
    Dense,
    LocallyConnected2D,
    Network,
    Node,
    OneToOne,
    SoftmaxCrossEntropy,
)
from partita.partitioner import Cluster, Costs, KernelTimes, Machine, Op, Plan, RowSplit, partition
from partita.partitioner.cluster.kernel_times import Timed
from partita.partitioner.cluster.work import Work, family_of, kind_of
from partita.partitioner.ir.program import COMPUTES
from tests.plans import plans


def work(size: float, family: str = "up Dense 1 <- 1; batch 1") -> Work:
    """Work of this many seconds on the reference machine."""
    return Work(family, f"{size}", 80e9 * size, 0.0, 0.0, 1)


def times(*points: tuple[float, float], family: str = "up Dense 1 <- 1; batch 1") -> KernelTimes:
    """A family that was measured at these sizes."""
    return KernelTimes({work(size, family).signature: Timed(took, size) for size, took in points})


def test_what_was_measured_is_known_exactly() -> None:
    assert times((1.0, 3.0), (2.0, 5.0)).find(work(2.0)) == (5.0, "measured")


def test_between_two_sizes_the_ratio_is_interpolated() -> None:
    known = times((1.0, 4.0), (4.0, 4.0))  # 4 times the reference, and as fast as it
    seconds, origin = known.find(work(2.0))
    assert seconds == pytest.approx(2.0 * 2.0) and origin == "interpolated"
    assert known.seconds(work(8.0)) == pytest.approx(8.0)
    assert known.seconds(work(0.5)) == pytest.approx(2.0)


@given(
    st.lists(st.tuples(st.floats(1e-6, 1.0), st.floats(0.1, 10.0)), min_size=1, max_size=5),
    st.floats(1e-6, 1.0),
)
def test_the_ratio_lies_between_those_that_were_measured(
    points: list[tuple[float, float]], size: float
) -> None:
    known = times(*((at, at * ratio) for at, ratio in points))
    ratios = [timed.seconds / timed.reference_s for timed in known.table.values()]
    assert min(ratios) * (1 - 1e-9) <= known.seconds(work(size)) / size <= max(ratios) * (1 + 1e-9)


def test_a_kernel_like_none_is_scaled_by_the_nearest_of_kin() -> None:
    known = KernelTimes(
        {
            **times((1.0, 2.0), family="up Dense wide; batch 1").table,
            **times((1.0, 4.0), family="up Conv2D 3x3; batch 1").table,
            **times((2.0, 1.0), family="learn Dense wide; batch 1").table,
        }
    )
    assert known.find(work(1.0, "up Dense narrow; batch 1")) == (2.0, "scaled")
    assert known.seconds(work(1.0, "up Add; batch 1")) == pytest.approx(3.0)  # of all that go up
    assert known.seconds(work(1.0, "errors Add; batch 1")) == pytest.approx(7.0 / 4.0)  # of all
    assert KernelTimes({}).seconds(work(1.0)) == 1.0


def net(**names: str) -> Network:
    found = Network("n")
    picture = found.input(names.get("x", "x"), shape=(9, 8, 2))
    local = LocallyConnected2D(4, 3, activation="relu", name=names.get("local"))(picture)
    scores = Dense(10, name=names.get("scores"))(local)
    found.loss = SoftmaxCrossEntropy(name=names.get("loss"))(scores, found.target(names.get("y", "y")))
    return found


def signatures(plan: Plan, machine: int = 0) -> list[str]:
    instructions = plan.programs[machine].instructions
    return [plan.costs.work(i, machine).signature for i in instructions if i.op in COMPUTES]


def test_names_do_not_matter_and_settings_do() -> None:
    def of(network: Network, **settings: object) -> list[str]:
        cluster = Cluster((Machine("a", threads=int(str(settings.pop("threads", 1)))),))
        return signatures(partition(network, cluster, **{"batch": 4, **settings}))  # type: ignore[arg-type]

    plain = of(net())
    assert plain == of(net(x="picture", local="filters", scores="classes", loss="error", y="digit"))
    for other in (of(net(), batch=5), of(net(), precision="float64"), of(net(), threads=2)):
        assert not set(plain) & set(other)


def test_pieces_of_equal_rows_are_the_same_kernels_wherever_they_lie() -> None:
    found = Network("n")
    hidden = Dense(8, activation="relu", name="hidden")(found.input("x", shape=6))
    Dense(8, activation="relu", name="above")(hidden)
    cuts = {"hidden": RowSplit(2), "above": RowSplit(2)}
    plan = partition(found, Cluster.local(2), batch=4, cuts=cuts)
    assert signatures(plan, 0) == signatures(plan, 1)


def test_activations_and_functions_are_told_apart() -> None:
    def up(layer: Activation | Node) -> str:
        found = Network("n")
        layer(found.input("x", shape=6))
        return signatures(partition(found, Cluster.local(1), batch=4))[-1]

    def twice(incoming):  # type: ignore[no-untyped-def]
        return 2.0 * incoming[0]

    def thrice(incoming):  # type: ignore[no-untyped-def]
        return 3.0 * incoming[0]

    def again(incoming):  # type: ignore[no-untyped-def]
        return 2.0 * incoming[0]

    assert up(Activation("relu")) != up(Activation("tanh"))
    assert up(Node(OneToOne(), twice)) != up(Node(OneToOne(), thrice))
    assert up(Node(OneToOne(), twice)) == up(Node(OneToOne(), again))


@given(plans(shared=True))
def test_every_computation_of_any_plan_has_a_signature_and_a_cost(plan: Plan) -> None:
    computed = [
        (i, program.machine) for program in plan.programs for i in program.instructions if i.op in COMPUTES
    ]
    assert computed
    for instruction, at in computed:
        found, machine = plan.costs.work(instruction, at), plan.cluster.machines[at]
        assert kind_of(family_of(found.signature)) == kind_of(found.family)
        assert 0.0 <= found.reference_s < math.inf
        assert plan.costs.compute_s(instruction, at) == pytest.approx(
            found.seconds(machine.flops_per_s, machine.bytes_per_s) + machine.instruction_s
        )


def test_measured_costs_are_used_and_scaled_by_speed() -> None:
    plan = partition(net(), Cluster.local(1), batch=4)
    table = {
        plan.costs.work(i, 0).signature: Timed(float(n + 1), 1.0)
        for n, i in enumerate(plan.programs[0].instructions)
    }
    cluster = Cluster((Machine("a", speed=2.0, instruction_s=0.25, times=KernelTimes(table)),))
    costs = Costs(plan.graph, cluster, batch=4)
    assert costs.calibrated
    assert [costs.compute_s(i, 0) for i in plan.programs[0].instructions] == [
        table[plan.costs.work(i, 0).signature].seconds / 2.0 + 0.25 for i in plan.programs[0].instructions
    ]
    fewer = {s: timed for s, timed in table.items() if not s.startswith("learn Dense")}
    assert not Costs(plan.graph, Cluster((Machine("a", times=KernelTimes(fewer)),)), batch=4).calibrated


def test_a_layer_costs_what_its_instructions_cost() -> None:
    plan = partition(net(), Cluster.local(1), batch=4)
    costs = plan.costs
    of_layers = sum(
        costs.layer_s(grid.name, BoxSet.of_rows((0, grid.n_rows)), 0, train=True)
        for grid in plan.graph.computed
    )
    feeds = [i for i in plan.programs[0].instructions if i.op is Op.FEED]
    assert of_layers == pytest.approx(
        plan.simulated_step.busy_s[0] - sum(costs.compute_s(i, 0) for i in feeds)
    )
    up = costs.layer_s("dense", BoxSet.of_rows((0, 5)), 0, train=False)
    assert (
        up
        < costs.layer_s("dense", BoxSet.of_rows((0, 5)), 0, train=True)
        < costs.layer_s("dense", BoxSet.of_rows((0, 10)), 0, train=True)
    )


def test_feeds_cost_nothing_where_batches_are_brought() -> None:
    plan = partition(net(), Cluster.local(1), batch=4)
    (feed, *_) = plan.programs[0].instructions
    brought = Costs(plan.graph, plan.cluster, batch=4, feeds=False)
    assert (
        brought.compute_s(feed, 0) == plan.cluster.machines[0].instruction_s < plan.costs.compute_s(feed, 0)
    )


def test_micro_batches_compute_less_at_a_time() -> None:
    graph = partition(net(), Cluster.local(2), batch=8, cuts={"dense": RowSplit(2)}).graph
    whole, parts = (
        Costs(graph, Cluster.local(2), batch=8),
        Costs(graph, Cluster.local(2), batch=8, micro_batches=4),
    )
    plan = partition(graph, Cluster.local(2), batch=8)
    (up,) = (i for i in plan.programs[0].instructions if str(i).startswith("FORWARD locally"))
    assert parts.work(up, 0).operations == whole.work(up, 0).operations / 4
    assert parts.work(up, 0).family != whole.work(up, 0).family
