"""Playing programs on the virtual clock: nobody waits for ever, and the time lies between its bounds."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from partita.layers import Add, Dense, Full, Graph, HalfSquaredError, Network, Node
from partita.partitioner import (
    Cluster,
    Costs,
    Deadlock,
    Link,
    Machine,
    MessageCost,
    Op,
    Plan,
    Program,
    StepKind,
    Timeline,
    Times,
    Whole,
    parse_program,
    partition,
)
from partita.partitioner.ir.program import COMPUTES, Operand
from partita.partitioner.ir.sizes import Sizes
from partita.partitioner.predict.simulate import simulate
from tests.draws import examples
from tests.networks import LEARNS, leaky_sum
from tests.partitioner.prices import Prices
from tests.plans import kinds, plans
from tests.properties.simulated import assert_no_deadlock, assert_step_time_within_bounds


class _OneByte(Sizes):
    def n_bytes(self, operand: Operand) -> int:
        return 1


SIZES = _OneByte(Graph("empty", (), ()), 1, "float32")


def played(*texts: str) -> Timeline:
    """Programs on machines where all takes a second, but a latency of half a second."""
    programs = [parse_program(machine, text) for machine, text in enumerate(texts)]
    prices = Prices(lambda *_: 1.0, lambda *_: MessageCost(1.0, 0.0, 0.5, 0.0))
    return simulate(programs, prices, SIZES)


@given(plans(shared=True), kinds)
def test_no_plan_deadlocks_however_slow_a_machine_is(plan: Plan, kind: StepKind) -> None:
    assert_no_deadlock(plan, kind)


@given(plans(losses=False, shared=True))
def test_a_network_without_a_loss_has_a_forward_pass_alone(plan: Plan) -> None:
    assert plan.programs == plan.forward_programs
    assert {m.direction for m in plan.messages} <= {"forward"}
    assert plan.predicted_step_s > 0


@settings(max_examples=examples(40))
@given(plans(shared=True))
def test_a_step_takes_at_least_its_critical_path_and_at_most_everything_in_turn(plan: Plan) -> None:
    assert_step_time_within_bounds(plan)


@given(plans(shared=True))
def test_a_machine_computes_one_thing_at_a_time_and_sends_one_thing_at_a_time(plan: Plan) -> None:
    for program in plan.programs:
        bars = [bar for bar in plan.simulated_step.bars if bar.machine == program.machine]
        for messages in (False, True):
            mine = [
                bar for bar in bars if (program.instructions[bar.position].op not in COMPUTES) is messages
            ]
            assert all(a.stop_s <= b.start_s * (1 + 1e-9) for a, b in pairwise(mine))
        assert sorted(bar.position for bar in bars) == list(range(len(program)))


def without(program: Program, position: int) -> Program:
    """The program without one instruction; who waited for it waits for what it waited for."""
    dropped = program.instructions[position]
    kept = []
    for n, instruction in enumerate(program.instructions):
        if n != position:
            after = set(instruction.after) | (set(dropped.after) if position in instruction.after else set())
            moved = sorted(k - (k > position) for k in after - {position})
            kept.append(replace(instruction, after=tuple(moved)))
    return Program(program.machine, tuple(kept))


@given(plan=plans(shared=True), data=st.data())
def test_a_lost_send_is_a_deadlock_that_names_who_waits_for_what(plan: Plan, data: st.DataObject) -> None:
    sends = [
        (program.machine, n)
        for program in plan.programs
        for n, instruction in enumerate(program.instructions)
        if instruction.op is Op.SEND
    ]
    assume(sends)
    machine, position = data.draw(st.sampled_from(sends))
    lost = plan.programs[machine].instructions[position]
    programs = [without(p, position) if p.machine == machine else p for p in plan.programs]
    with pytest.raises(Deadlock) as caught:
        simulate(programs, plan.costs, plan.sizes)
    assert f"machine {lost.peer} waits for {lost.target.buffer} from machine {machine}:" in str(caught.value)


def test_two_that_wait_for_one_another_are_found() -> None:
    with pytest.raises(Deadlock) as caught:
        played("RECV b[0:1] <- 1\nSEND a[0:1] -> 1 after 0", "RECV a[0:1] <- 0\nSEND b[0:1] -> 0 after 0")
    assert str(caught.value).splitlines() == [
        "these programs never end:",
        "  machine 0 waits for b from machine 1: 0 RECV b[0:1] <- 1",
        "  machine 1 waits for a from machine 0: 0 RECV a[0:1] <- 0",
    ]


def test_times_of_small_programs() -> None:
    assert played("FORWARD a[0:1]\nFORWARD b[0:1] after 0").step_s == 2.0
    assert played("FORWARD a[0:1]\nFORWARD b[0:1]").busy_s == (2.0,)  # one kernel at a time
    assert played("FORWARD a[0:1]", "FORWARD b[0:1]").step_s == 1.0  # machines at the same time
    assert (
        played("FEED a[0:1]\nSEND a[0:1] -> 1 after 0", "RECV a[0:1] <- 0\nFORWARD b[0:1] after 0").step_s
        == 3.5
    )


def test_what_is_ready_runs_in_the_order_of_the_list_and_sending_overlaps() -> None:
    simulated_step = played(
        "FORWARD a[0:1]\nSEND a[0:1] -> 1 after 0\nFORWARD b[0:1]\nFORWARD c[0:1]",
        "RECV a[0:1] <- 0\nFORWARD d[0:1] after 0",
    )
    on_the_first = [
        (bar.position, bar.start_s, bar.stop_s) for bar in simulated_step.bars if bar.machine == 0
    ]
    assert on_the_first == [(0, 0.0, 1.0), (1, 1.0, 2.0), (2, 1.0, 2.0), (3, 2.0, 3.0)]
    assert simulated_step.step_s == 3.5  # sent at 2, there at 2.5, computed at 3.5


def test_a_communication_thread_without_a_core_delays_the_kernels() -> None:
    """The first sends for 1 s while it computes; the second takes it in, 1 s, while it computes."""
    programs = [
        parse_program(
            0, "FORWARD a[0:1]\nSEND a[0:1] -> 1 after 0\nFORWARD b[0:1] after 0\nFORWARD c[0:1] after 2"
        ),
        parse_program(1, "FORWARD d[0:1]\nFORWARD e[0:1] after 0\nFORWARD f[0:1] after 1\nRECV a[0:1] <- 0"),
    ]
    prices = Prices(lambda *_: 1.0, lambda *_: MessageCost(1.0, 0.0, 0.5, 1.0), held_up=True)
    found = simulate(programs, prices, SIZES)
    assert [(bar.start_s, bar.stop_s) for bar in found.bars if bar.machine == 0] == [
        (0, 1),
        (1, 2),
        (1, 3),
        (3, 4),
    ]
    assert found.step_s == 4.0 and found.busy_s == (4.0, 4.0)


def test_a_link_that_goes_one_way_at_a_time_lets_one_message_wait() -> None:
    texts = [
        f"FORWARD {me}[0:1]\nSEND {me}[0:1] -> {n} after 0\nRECV {you}[0:1] <- {n}"
        for me, you, n in ("ab1", "ba0")
    ]
    programs = [parse_program(machine, text) for machine, text in enumerate(texts)]
    for at_once, step_s in ((True, 3.0), (False, 5.0)):
        prices = Prices(lambda *_: 1.0, lambda *_: MessageCost(0.0, 2.0, 0.0, 0.0), at_once=at_once)
        assert simulate(programs, prices, SIZES).step_s == step_s


def test_a_step_begins_late_by_what_it_costs() -> None:
    (program,) = [parse_program(0, "FORWARD a[0:1]")]
    prices = Prices(lambda *_: 1.0, lambda *_: MessageCost(0.0, 0.0, 0.0, 0.0), begin_s=0.25)
    played = simulate([program], prices, SIZES)
    assert played.step_s == 1.25
    assert played.times == (Times(computing_s=1.0, sending_s=0.0, waiting_s=0.0, idle_s=0.25),)


@given(plans())
def test_a_machine_that_receives_nothing_never_waits(plan: Plan) -> None:
    for program, times in zip(plan.programs, plan.simulated_step.times, strict=True):
        if not any(instruction.op is Op.RECV for instruction in program.instructions):
            assert times.waiting_s == pytest.approx(0, abs=1e-12)
    alone = partition(plan.graph, Cluster.local(1), batch=plan.batch)
    (times,) = alone.simulated_step.times
    assert times.waiting_s == pytest.approx(0, abs=1e-12) and times.idle_s == pytest.approx(60e-6)


def test_a_faster_link_and_a_faster_machine_shorten_the_step() -> None:
    net = Network("pair")
    hidden = Dense(512, name="hidden")(net.input("x", shape=512))
    net.loss = HalfSquaredError(name="loss")(Dense(512, name="scores")(hidden), net.target("y"))
    cuts = {"hidden": Whole(0), "scores": Whole(1), "loss": Whole(1)}

    def step(cluster: Cluster) -> float:
        return partition(net, cluster, batch=64, cuts=cuts).predicted_step_s

    base = Cluster.local(2)
    fast = tuple(replace(machine, flops_per_s=2 * machine.flops_per_s) for machine in base.machines)
    assert step(Cluster(fast)) < step(base)
    apart = replace(base, machines=tuple(replace(machine, host="") for machine in base.machines))
    slow, quick = replace(apart, link=Link(1e-2, 1e8)), replace(apart, link=Link(0.0, 1e12))
    assert step(slow) > step(apart) > step(base) > step(quick)


def free_form() -> Network:
    """A layer of nodes beside a dense one of half as many operations again, over one node below."""
    net = Network("free_form")
    below = Dense(1, name="below")(net.input("x", shape=2))
    downward, learns = LEARNS[leaky_sum]
    nodes = Node(Full(), leaky_sum, downward, learns, (100,), name="nodes")(below)
    both = Add(name="both")(nodes, Dense(100, name="wide")(below))
    net.loss = HalfSquaredError(name="loss")(both, net.target("y"))
    return net


def test_free_form_nodes_take_longer_by_the_stated_factor_and_nothing_else_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    quick = Cluster((Machine("quick", bytes_per_s=1e18),))  # whose memory takes no time
    plan = partition(free_form(), quick, batch=8)
    (program,) = plan.programs_for(StepKind(gradients="whole"))

    def kernel_s() -> list[float]:
        costs = Costs(plan.graph, plan.cluster, batch=8)
        return [costs.compute_s(i, 0) - plan.cluster.machines[0].instruction_s for i in program.instructions]

    slow = kernel_s()
    monkeypatch.setattr(Node, "slowdown", 1.0)
    factors = [a / b for a, b in zip(slow, kernel_s(), strict=True)]
    of_nodes = [
        i.op in (Op.FORWARD, Op.GRADIENT, Op.GRAD_INPUT)
        and str(i.target).startswith(("nodes[", "nodes.", "below<nodes["))
        for i in program.instructions
    ]
    assert sum(of_nodes) == 3
    assert factors == pytest.approx([30.0 if slower else 1.0 for slower in of_nodes])


def test_a_machine_that_plays_free_form_nodes_counts_as_busy() -> None:
    by_hand = {"nodes": Whole(0), "wide": Whole(1), "both": Whole(1), "loss": Whole(1)}
    plan = partition(free_form(), Cluster.local(2), batch=8, cuts=by_hand, strategy="balanced")
    assert [piece.machine for piece in plan.ownership.of("below")] == [1]
