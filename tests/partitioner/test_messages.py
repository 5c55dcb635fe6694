"""Messages contain what is needed, once: plan, programs and the edges of the nodes agree."""

from __future__ import annotations

import math
from collections import Counter

from hypothesis import assume, given
from hypothesis import strategies as st

from partita.layers import Add, BoxSet, Dense, HalfSquaredError, Network
from partita.partitioner import Cluster, Message, Plan, RowSplit, StepKind, Whole, partition
from partita.partitioner.ir.buffer import NORMS, BufferKind, activations
from partita.partitioner.ir.sizes import PRECISIONS
from tests.partitioner.expected import Expected, members
from tests.plans import kinds, plans
from tests.properties.messages import (
    assert_activations_sent_where_needed,
    assert_errors_sent_towards_owner,
    assert_placeholders_fed_and_never_sent,
    assert_sent_once_and_received_once,
    assert_shared_weights_sent_once,
    of_nodes,
    receives,
)


@given(plans(shared=True), kinds)
def test_every_message_is_sent_once_and_received_once(plan: Plan, kind: StepKind) -> None:
    assert_sent_once_and_received_once(plan, kind)


@given(plans(shared=True))
def test_a_forward_pass_sends_what_a_step_of_training_sends_forward(plan: Plan) -> None:
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


@given(plans(shared=True))
def test_an_activation_is_sent_once_to_each_machine_that_needs_it_and_to_no_other(plan: Plan) -> None:
    assert_activations_sent_where_needed(plan)


@given(st.one_of(plans(shared=True, micro_batches=3), plans(tiles=True)))
def test_the_connectivity_is_what_is_received_in_the_forward_pass(plan: Plan) -> None:
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
    received = Counter[str]()
    for _, _, buffer, rows in receives(plan.programs_for(StepKind(train=False))):
        received[str(buffer.undivided)] += len(members(rows))
    found = {name: received[name] + received[f"{name}.sums"] for name in nodes}
    assert plan.connectivity * plan.micro_batches == sum(nodes[name] * count for name, count in found.items())


@given(plans(shared=True))
def test_placeholders_are_fed_where_they_are_needed_and_never_sent(plan: Plan) -> None:
    assert_placeholders_fed_and_never_sent(plan)


@given(plans(shared=True))
def test_errors_are_sent_towards_the_owner(plan: Plan) -> None:
    assume(any(message.direction == "backward" for message in of_nodes(plan)))
    assert_errors_sent_towards_owner(plan)


@given(plans(shared=True))
def test_shared_weights_are_sent_once_and_their_gradients_come_back_once(plan: Plan) -> None:
    assert_shared_weights_sent_once(plan)


@given(plans(shared=True))
def test_machines_exchange_a_few_numbers_for_each_example(plan: Plan) -> None:
    """Loss shards a summary of their scores, group normalisations also the gradient of theirs."""
    expected, graph = Expected(plan.ownership), plan.graph
    kinds = (BufferKind.SUMMARY, BufferKind.GRAD_SUMMARY)
    listed = {
        (f"{grid.name}.{kind}", BoxSet.of_rows((n, n + 1)), machine, other)
        for grid in graph.computed
        for kind in kinds[: 1 + (grid.name not in graph.losses and grid.name in graph.needs_gradient)]
        for n, machine in enumerate(expected.summary_senders(grid.name))
        for other in expected.summary_senders(grid.name)
        if machine != other
    }
    found = [m for m in plan.messages if m.buffer.kind in kinds]
    assert {(str(m.buffer), m.rows, m.source, m.destination) for m in found} == listed
    assert len(found) == len(listed)
    for message in found:
        grid = plan.graph[message.layer]
        declared = grid.layer.summary(grid.shape)
        assert declared is not None
        n_examples = plan.batch if declared.by_example else 1
        assert message.n_bytes == math.prod(declared.shape) * n_examples * 4


@given(plans(shared=True))
def test_parameter_owners_exchange_their_norms(plan: Plan) -> None:
    learners = Expected(plan.ownership).parameter_owners()
    found = [m for m in plan.messages_for(StepKind(norms=True)) if m.buffer == NORMS]
    assert {(m.rows, m.source, m.destination) for m in found} == {
        (BoxSet.of_rows((n, n + 1)), machine, other)
        for n, machine in enumerate(learners)
        for other in learners
        if machine != other
    }
    assert all(m.n_bytes == 2 * len(plan.graph.parameters) * 8 for m in found)


def test_a_layer_read_by_two_others_of_a_machine_is_sent_there_once() -> None:
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
