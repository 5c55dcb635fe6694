"""Assertions over the messages of a plan, against the edges of its nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from partita.layers import BoxSet
from partita.partitioner import Message, Op, Plan, Program, StepKind
from partita.partitioner.ir.buffer import Buffer
from partita.partitioner.ir.sizes import PRECISIONS
from tests.partitioner.expected import Expected, members


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


def of_nodes(plan: Plan) -> list[Message]:
    """Messages of activations and errors; not of weights, gradients and summaries."""
    return [message for message in plan.messages if message.buffer.travels_along_edges]


def assert_sent_once_and_received_once(plan: Plan, kind: StepKind) -> None:
    """Asserts that the messages of a plan are what its programs send, and what they receive."""
    programs, messages = plan.programs_for(kind), plan.messages_for(kind)
    assert Counter(sends(programs)) == Counter(receives(programs)) == Counter(addressed(messages))
    assert len(set(sends(programs))) == len(messages)
    keys = Counter((m.source, m.destination, m.buffer) for m in messages)
    assert max(keys.values(), default=1) == 1, "two messages of a step cannot be distinguished"


def assert_activations_sent_where_needed(plan: Plan) -> None:
    """Asserts that an activation is sent once to each machine that needs it, and to no other."""
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


def assert_placeholders_fed_and_never_sent(plan: Plan) -> None:
    """Asserts that inputs and targets are fed where they are needed, and never sent."""
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


def assert_errors_sent_towards_owner(plan: Plan) -> None:
    """Asserts that errors go from a machine whose nodes read the rows towards the owner of these rows."""
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


def assert_shared_weights_sent_once(plan: Plan) -> None:
    """Asserts that each user of shared weights receives them once and sends one gradient back."""
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
