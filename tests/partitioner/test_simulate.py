"""Playing programs on the virtual clock: nobody waits for ever, and the time lies between its bounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, replace
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from partita.layers import Add, Dense, Full, Network, Node, SquaredError
from partita.partitioner import (
    Cluster,
    Deadlock,
    Instruction,
    Link,
    Op,
    Plan,
    Program,
    StepKind,
    Whole,
    cost,
    partition,
)
from partita.partitioner.cost import Costs, MessageCost
from partita.partitioner.playback import Bar, Flight, Playback
from partita.partitioner.program import COMPUTES, parse_program
from partita.partitioner.simulate import play
from partita.partitioner.sizes import Sizes
from partita.partitioner.words import critical_path, waits
from tests.networks import LEARNS, leaky_sum
from tests.plans import kinds, plans


@dataclass(frozen=True)
class Fixed:
    """Costs that look at machines alone: of each one's instructions, and of what is sent to it."""

    compute: Callable[[int], float] = lambda machine: 1.0
    message_to: Callable[[int], MessageCost] = lambda machine: MessageCost(1.0, 0.0, 0.5, 0.0)

    def compute_s(self, instruction: Instruction, machine: int) -> float:
        return self.compute(machine)

    def message(self, n_bytes: int, source: int, destination: int) -> MessageCost:
        return self.message_to(destination)


def played(*texts: str, message: MessageCost | None = None, hosts: Sequence[str] | None = None) -> Playback:
    """Programs of a dense layer's buffers, every computation a second long."""
    net = Network("letters")
    states = net.input("x", shape=9)
    for letter in "abcd":
        states = Dense(9, name=letter)(states)
    programs = [parse_program(machine, text) for machine, text in enumerate(texts)]
    costs = Fixed() if message is None else Fixed(message_to=lambda _: message)
    return play(programs, costs, Sizes(net.graph(), 1, "float32"), hosts=hosts)


@given(plans(shared=True), kinds)
def test_no_plan_deadlocks_whatever_takes_how_long(plan: Plan, kind: StepKind) -> None:
    for programs in (plan.programs_for(kind), plan.for_prediction().programs):
        for slow in range(len(programs) + 1):
            play(programs, one_slow(slow), plan.sizes)


def one_slow(slow: int) -> Fixed:
    """Costs of machines of which one takes ages, and is hard to reach."""
    return Fixed(
        lambda machine: 100.0 if machine == slow else 0.01,
        lambda machine: MessageCost(0.02, 50.0 if machine == slow else 0.01, 0.1, 0.02),
    )


@given(plans(losses=False, shared=True))
def test_a_network_without_a_loss_plays_its_way_up(plan: Plan) -> None:
    assert plan.programs == plan.upward_programs
    assert {m.direction for m in plan.messages} <= {"up"}
    assert plan.predicted_step_s > 0


@settings(max_examples=100)
@given(plans(shared=True))
def test_a_step_takes_at_least_its_critical_path_and_at_most_everything_in_turn(plan: Plan) -> None:
    costs = plan.costs
    everything = 0.0
    busy = [0.0] * len(plan.cluster)
    for program in plan.programs:
        for i in program.instructions:
            if i.op in COMPUTES:
                busy[program.machine] += costs.compute_s(i, program.machine)
            elif i.op is Op.SEND:
                everything += sum(astuple(cost_of(plan, program.machine, i)))
    everything += sum(busy)
    step = plan.predicted_step_s
    assert max([longest_chain(plan), *busy]) <= step * (1 + 1e-9) and step <= everything * (1 + 1e-9)
    assert plan.playback.busy_s == pytest.approx(busy)
    if len(plan.cluster) == 1:
        assert step == pytest.approx(everything)


def cost_of(plan: Plan, source: int, send: Instruction) -> MessageCost:
    return plan.costs.message(plan.sizes.n_bytes(send.target), source, send.peer or 0)


def longest_chain(plan: Plan) -> float:
    """When everything would be done if every machine had threads and links for all that is ready."""
    ends: dict[tuple[int, int], float] = {}
    senders = {
        (program.machine, instruction.peer, instruction.target.buffer): (program.machine, n)
        for program in plan.programs
        for n, instruction in enumerate(program.instructions)
        if instruction.op is Op.SEND
    }

    def end(machine: int, n: int) -> float:
        if (machine, n) not in ends:
            instruction = plan.programs[machine].instructions[n]
            start = max((end(machine, k) for k in instruction.after), default=0.0)
            if instruction.op is Op.RECV:
                source = senders[instruction.peer or 0, machine, instruction.target.buffer.partition("@")[0]]
                cost = cost_of(plan, source[0], plan.programs[source[0]].instructions[source[1]])
                ends[machine, n] = max(start, end(*source) + cost.wire_s + cost.latency_s + cost.receive_s)
            elif instruction.op is Op.SEND:
                ends[machine, n] = start + cost_of(plan, machine, instruction).send_s
            else:
                ends[machine, n] = start + plan.costs.compute_s(instruction, machine)
        return ends[machine, n]

    return max((end(p.machine, n) for p in plan.programs for n in range(len(p))), default=0.0)


@given(plans(shared=True))
def test_a_machine_computes_one_thing_at_a_time_and_has_one_messenger(plan: Plan) -> None:
    playback = plan.playback
    for program in plan.programs:
        bars = [bar for bar in playback.bars if bar.machine == program.machine]
        for computes in (False, True):
            mine = [bar for bar in bars if (playback.instruction(bar).op in COMPUTES) is computes]
            assert all(a.stop_s <= b.start_s + 1e-12 for a, b in pairwise(mine))
        assert sorted(bar.position for bar in bars) == list(range(len(program)))


@given(plans(shared=True))
def test_the_critical_path_is_one_chain_without_a_gap(plan: Plan) -> None:
    path, step = plan.playback.critical_path, plan.predicted_step_s
    assert path[0].start_s == 0.0 and path[-1].stop_s == pytest.approx(step)
    for a, b in pairwise(path):
        assert a.stop_s == pytest.approx(b.start_s)
        if isinstance(a, Bar) and isinstance(b, Bar):
            assert a.machine == b.machine
        elif isinstance(a, Flight):
            assert isinstance(b, Bar) and (b.machine, b.position) == (a.destination, a.receive)
        elif isinstance(b, Flight):
            assert (a.machine, a.position) == (b.source, b.send)


@given(plans(shared=True))
def test_where_the_time_goes_adds_up_to_the_step(plan: Plan) -> None:
    for machine, times in enumerate(plan.playback.times):
        spent = (times.computing_s, times.sending_s, times.waiting_s, times.idle_s)
        assert min(spent) >= -1e-12 and sum(spent) == pytest.approx(plan.predicted_step_s)
        if not plan.ownership.of_machine(machine):
            assert times.idle_s == plan.predicted_step_s
    assert all(wait.seconds <= plan.predicted_step_s for wait in waits(plan.playback))


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
        play(programs, plan.costs, plan.sizes)
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
    assert played("UP a[0:1]\nUP b[0:1] after 0").step_s == 2.0
    assert played("UP a[0:1]\nUP b[0:1]").busy_s == (2.0,)  # one kernel at a time
    assert played("UP a[0:1]", "UP b[0:1]").step_s == 1.0  # machines at the same time
    assert (
        played("FEED a[0:1]\nSEND a[0:1] -> 1 after 0", "RECV a[0:1] <- 0\nUP b[0:1] after 0").step_s == 3.5
    )


def test_what_is_ready_runs_in_the_order_of_the_list_and_sending_overlaps() -> None:
    playback = played(
        "UP a[0:1]\nSEND a[0:1] -> 1 after 0\nUP b[0:1]\nUP c[0:1]", "RECV a[0:1] <- 0\nUP d[0:1] after 0"
    )
    on_the_first = [(bar.position, bar.start_s, bar.stop_s) for bar in playback.bars if bar.machine == 0]
    assert on_the_first == [(0, 0.0, 1.0), (1, 1.0, 2.0), (2, 1.0, 2.0), (3, 2.0, 3.0)]
    assert playback.step_s == 3.5  # sent at 2, there at 2.5, computed at 3.5


def test_two_messages_share_a_link_and_two_receipts_a_messenger() -> None:
    both = (
        "FEED a[0:1]\nSEND a[0:1] -> 2 after 0",
        "FEED b[0:1]\nSEND b[0:1] -> 2 after 0",
        "RECV a[0:1] <- 0\nRECV b[0:1] <- 1\nUP c[0:1] after 0,1",
    )
    # fed at 1, handed over at 1, on the way in from 1 to 3 and from 3 to 5, taken in at 5.5, computed at 6.5
    assert played(*both, message=MessageCost(0.0, 2.0, 0.0, 0.5)).step_s == 6.5
    # on one host nothing is on a link, but the messenger takes in one after the other: at 3.5 and at 4
    assert played(*both, message=MessageCost(0.0, 2.0, 0.0, 0.5), hosts="hhh").step_s == 5.0
    # a message that is on its way does not keep its link busy
    assert played(*both, message=MessageCost(0.0, 0.0, 2.0, 0.5)).step_s == 5.0
    # two senders on one host share its way out
    assert played(*both, message=MessageCost(0.0, 2.0, 1.0, 0.5), hosts="hhx").step_s == 7.5


def test_a_wait_in_words() -> None:
    playback = played(
        "FEED a[0:1]\nSEND a[0:1] -> 1 after 0", "FEED d[0:1]\nRECV a[0:1] <- 0\nUP b[0:1] after 1"
    )
    # machine 1 has fed itself at 1; what machine 0 sends is there at 2.5
    assert [str(wait) for wait in waits(playback)] == ["machine 1 waits 1.5 s for a's states from machine 0"]
    assert critical_path(playback).splitlines() == [
        "critical path: machine 0 computes 1 s, machine 1 computes 1 s, 1 message takes 1.5 s",
        "  machine 1 waits 1.5 s for a's states from machine 0",
    ]


def test_a_faster_link_and_a_faster_machine_shorten_the_step() -> None:
    net = Network("pair")
    hidden = Dense(512, name="hidden")(net.input("x", shape=512))
    net.loss = SquaredError(name="loss")(Dense(512, name="scores")(hidden), net.target("y"))
    cuts = {"hidden": Whole(0), "scores": Whole(1), "loss": Whole(1)}

    def step(cluster: Cluster) -> float:
        return partition(net, cluster, batch=64, cuts=cuts, strategy="balanced").predicted_step_s

    base = Cluster.local(2)
    fast = tuple(replace(machine, flops_per_s=2 * machine.flops_per_s) for machine in base.machines)
    assert step(Cluster(fast)) < step(base)
    assert step(replace(base, link=Link(1e-2, 1e8))) > step(base) > step(replace(base, link=Link(0.0, 1e12)))


def free_form() -> Network:
    """A layer of nodes beside a dense one of half as many operations again, over one node below."""
    net = Network("free_form")
    below = Dense(1, name="below")(net.input("x", shape=2))
    downward, learns = LEARNS[leaky_sum]
    nodes = Node(Full(), leaky_sum, downward, learns, (100,), name="nodes")(below)
    both = Add(name="both")(nodes, Dense(100, name="wide")(below))
    net.loss = SquaredError(name="loss")(both, net.target("y"))
    return net


def test_free_form_nodes_take_longer_by_the_stated_factor_and_nothing_else_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = partition(free_form(), Cluster.local(1), batch=8)
    (program,) = plan.programs_for(StepKind(gradients="whole"))

    def kernel_s() -> list[float]:
        costs = Costs(plan.graph, plan.cluster, batch=plan.batch)
        return [costs.compute_s(i, 0) - cost.INSTRUCTION_OVERHEAD_S for i in program.instructions]

    slow = kernel_s()
    monkeypatch.setattr(cost, "FREE_FORM_SLOWDOWN", 1.0)
    factors = [a / b for a, b in zip(slow, kernel_s(), strict=True)]
    of_nodes = [
        i.op in (Op.UP, Op.GRADIENT, Op.ERRORS)
        and str(i.target).startswith(("nodes[", "nodes.", "below<nodes["))
        for i in program.instructions
    ]
    assert sum(of_nodes) == 3
    assert factors == pytest.approx([30.0 if slower else 1.0 for slower in of_nodes])


def test_a_machine_that_plays_free_form_nodes_counts_as_busy() -> None:
    by_hand = {"nodes": Whole(0), "wide": Whole(1), "both": Whole(1), "loss": Whole(1)}
    plan = partition(free_form(), Cluster.local(2), batch=8, cuts=by_hand, strategy="balanced")
    assert [piece.machine for piece in plan.ownership.of("below")] == [1]
