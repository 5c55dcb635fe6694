"""Messages contain what is needed, once: plan, programs and the edges of the nodes agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from partita.layers import Add, Dense, HalfSquaredError, Network, SoftmaxCrossEntropy
from partita.layers.box import BoxSet
from partita.partitioner import Cluster, Message, Op, Plan, Program, RowSplit, StepKind, Whole, partition
from partita.partitioner.ir.buffer import NORMS, Buffer, BufferKind, activations
from partita.partitioner.ir.sizes import PRECISIONS
from tests.partitioner.expected import Expected, members
from tests.plans import kinds, plans


def sends(programs: Sequence[Program]) -> list[tuple[int, int, Buffer, object]]:
    return [
        (program.machine, instruction.peer, instruction.target.buffer, instruction.target.rows)
        for program in programs
        for instruction in program.instructions
        if instruction.op is Op.SEND and instruction.peer is not None
    ]


def receives(programs: Sequence[Program]) -> list[tuple[int, int, str, BoxSet]]:
    return [
        (
            instruction.peer,
            program.machine,
            instruction.target.buffer.sent,
            instruction.target.rows,
        )
        for program in programs
        for instruction in program.instructions
        if instruction.op is Op.RECV and instruction.peer is not None
    ]


def addressed(messages: Sequence[Message]) -> list[tuple[int, int, Buffer, object]]:
    return [(m.source, m.destination, m.buffer, m.rows) for m in messages]


@given(plans(shared=True), kinds)
def test_every_message_is_sent_once_and_received_once(plan: Plan, kind: StepKind) -> None:
    programs, messages = plan.programs_for(kind), plan.messages_for(kind)
    assert Counter(sends(programs)) == Counter(receives(programs)) == Counter(addressed(messages))
    assert len(set(sends(programs))) == len(messages)
    keys = Counter((m.source, m.destination, m.buffer) for m in messages)
    assert max(keys.values(), default=1) == 1, "two messages of a step cannot be told apart"


@given(plans(shared=True))
def test_the_way_up_needs_what_a_step_of_training_sends_up(plan: Plan) -> None:
    up = tuple(message for message in plan.messages if message.direction == "forward")
    assert plan.messages_for(StepKind(train=False)) == up


@given(plans(shared=True))
def test_bytes_are_those_of_the_rows_for_the_whole_batch(plan: Plan) -> None:
    for message in of_nodes(plan):
        shape = plan.graph[message.layer].shape
        nodes = len(members(message.rows))
        for extent in shape[1:]:
            nodes *= extent
        assert message.n_bytes == nodes * plan.batch * PRECISIONS[plan.precision] > 0


def of_nodes(plan: Plan) -> list[Message]:
    """Messages of activations and errors; not of weights, gradients and summaries."""
    return [message for message in plan.messages if message.buffer.travels_along_edges]


@given(plans(shared=True))
def test_a_state_travels_once_to_each_machine_that_needs_it_and_to_no_other(plan: Plan) -> None:
    expected = Expected(plan.ownership)
    arrived: Counter[tuple[str, int, int]] = Counter()
    for message in of_nodes(plan):
        assert message.source != message.destination
        if message.direction == "forward":
            assert set(members(message.rows)) <= set(expected.own(message.layer, message.source))
            arrived.update((message.layer, message.destination, row) for row in members(message.rows))
    needed = Counter(
        (grid.name, machine, row)
        for grid in plan.graph.computed
        for machine in range(len(plan.cluster))
        for row in expected.needed_by_all(grid.name, machine) - set(expected.own(grid.name, machine))
    )
    assert arrived == needed


@given(st.one_of(plans(shared=True, micro_batches=3), plans(tiles=True)))
def test_the_connectivity_is_what_is_received_on_the_way_up(plan: Plan) -> None:
    """Counts nodes, once for each machine that receives an activation, or a machine's sum over its inputs."""
    expected, machines = Expected(plan.ownership), range(len(plan.cluster))
    nodes = {
        g.name: g.n_nodes // (g.n_rows * (g.shape[1] if expected.is_boxed(g.name) else 1))
        for g in plan.graph.computed
    }
    states = sum(
        nodes[layer] * len(expected.needed_by_all(layer, machine) - set(expected.own(layer, machine)))
        for layer in nodes
        for machine in machines
    )
    sums = sum(
        nodes[layer] * len(expected.own(layer, machine)) * (len(expected.owners(layer)) - 1)
        for layer in nodes
        for machine in machines
        if expected.is_input_split(layer)
    )
    assert plan.travelling == (states, sums) and plan.connectivity == states + sums
    heard = Counter[str]()
    for _, _, buffer, rows in receives(plan.programs_for(StepKind(train=False))):
        heard[str(buffer.undivided)] += len(members(rows))
    found = {name: heard[name] + heard[f"{name}.sums"] for name in nodes}
    assert plan.connectivity * plan.micro_batches == sum(nodes[name] * count for name, count in found.items())


@given(plans(shared=True))
def test_what_is_given_never_travels_and_is_fed_where_it_is_needed(plan: Plan) -> None:
    expected = Expected(plan.ownership)
    given_names = {grid.name for grid in plan.graph.grids if grid.is_placeholder}
    assert not given_names & {message.layer for message in plan.messages}
    for program in plan.programs:
        fed = {
            (instruction.target.buffer.layer, row)
            for instruction in program.instructions
            if instruction.op is Op.FEED
            for row in members(instruction.target.rows)
        }
        assert fed == {
            (name, row) for name in given_names for row in expected.needed_by_all(name, program.machine)
        }


@given(plans(shared=True))
def test_errors_travel_from_who_listens_towards_the_owner(plan: Plan) -> None:
    expected = Expected(plan.ownership)
    for message in of_nodes(plan):
        if message.direction == "backward":
            assert message.layer in plan.graph.needs_gradient
            assert message.buffer.edge is not None
            _, consumer, number = message.buffer.edge
            rows = set(members(message.rows))
            assert rows <= expected.needed(consumer, number, message.source)
            onward = (
                set()
                if expected.sums_by_machine(consumer)
                else expected.needed(consumer, number, message.destination)
            )
            assert rows <= onward | set(expected.own(message.layer, message.destination))


@given(plans(shared=True))
def test_weights_are_lent_once_and_their_gradients_come_back_once(plan: Plan) -> None:
    expected = Expected(plan.ownership)
    item = PRECISIONS[plan.precision]
    sent, returned = [], []
    for grid in plan.graph.computed:
        numbers = sum(parameter.size for parameter in grid.parameters)
        home = expected.owners(grid.name)[0]
        for other in expected.weight_receivers(grid.name):
            sent.append((f"{grid.name}.parameters", home, other, numbers * item))
            returned.append((f"{grid.name}.gradient", other, home, numbers * item))
    for direction, messages in (("forward", sent), ("backward", returned)):
        found = [m for m in plan.messages if m.direction == direction and m.is_of_weights]
        assert sorted((str(m.buffer), m.source, m.destination, m.n_bytes) for m in found) == sorted(messages)
        assert all(m.rows == BoxSet.of_rows((0, 1)) for m in found)


@given(plans(shared=True))
def test_judges_tell_one_another_a_few_numbers_for_each_example(plan: Plan) -> None:
    expected = Expected(plan.ownership)
    told = {
        (f"{loss}.summary", BoxSet.of_rows((n, n + 1)), machine, other)
        for loss in plan.graph.losses
        for n, machine in enumerate(expected.summary_senders(loss))
        for other in expected.summary_senders(loss)
        if machine != other
    }
    found = [m for m in plan.messages if m.buffer.kind is BufferKind.SUMMARY]
    assert {(str(m.buffer), m.rows, m.source, m.destination) for m in found} == told
    assert len(found) == len(told)
    for message in found:
        numbers = 2 if isinstance(plan.graph[message.layer].layer, SoftmaxCrossEntropy) else 1
        assert message.n_bytes == numbers * plan.batch * 4


@given(plans(shared=True))
def test_machines_that_learn_tell_one_another_their_norms(plan: Plan) -> None:
    learners = Expected(plan.ownership).parameter_owners()
    found = [m for m in plan.messages_for(StepKind(norms=True)) if m.buffer == NORMS]
    assert {(m.rows, m.source, m.destination) for m in found} == {
        (BoxSet.of_rows((n, n + 1)), machine, other)
        for n, machine in enumerate(learners)
        for other in learners
        if machine != other
    }
    assert all(m.n_bytes == 2 * len(plan.graph.parameters) * 8 for m in found)


def test_a_layer_heard_by_two_others_of_a_machine_is_sent_there_once() -> None:
    net = Network("fan")
    hidden = Dense(4, name="hidden")(net.input("x", shape=3))
    both = Add(name="both")(Dense(2, name="left")(hidden), Dense(2, name="right")(hidden))
    net.loss = HalfSquaredError(name="loss")(both, net.target("y"))
    cuts = {"hidden": Whole(0), "left": Whole(1), "right": Whole(1), "both": Whole(1), "loss": Whole(1)}
    plan = partition(net, Cluster.local(2), batch=5, cuts=cuts, strategy="balanced")
    up = [message for message in plan.messages if message.direction == "forward"]
    assert up == [Message(activations("hidden"), BoxSet.of_rows((0, 4)), 0, 1, 4 * 5 * 4)]
    down = [(str(m.buffer), m.source, m.destination) for m in plan.messages if m.direction == "backward"]
    assert down == [("hidden<left", 1, 0), ("hidden<right", 1, 0)]


def test_float64_doubles_the_bytes() -> None:
    net = Network("wide")
    net.loss = HalfSquaredError()(Dense(2)(Dense(4, name="hidden")(net.input("x", shape=3))), net.target("y"))
    sizes = {
        precision: sum(
            m.n_bytes
            for m in partition(
                net,
                Cluster.local(2),
                batch=3,
                cuts={"hidden": RowSplit(2)},
                precision=precision,
                strategy="balanced",
            ).messages
        )
        for precision in ("float32", "float64")
    }
    assert sizes["float64"] == 2 * sizes["float32"] > 0
