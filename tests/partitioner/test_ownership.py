"""Every row belongs to one machine, and what a machine touches lies in the windows that it holds."""

from __future__ import annotations

import pickle
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.layers import BoxSet, Dense, Graph, Network
from partita.partitioner import Cluster, Ownership, Piece, Plan, partition
from partita.partitioner.assign.piece import boundaries
from tests.partitioner.expected import Expected, members
from tests.plans import plans


def two_layers() -> Graph:
    net = Network("small")
    Dense(2, name="scores")(Dense(4, name="hidden")(net.input("x", shape=3)))
    return net.graph()


@given(plans(shared=True))
def test_every_row_of_every_layer_is_owned_once(plan: Plan) -> None:
    """Replicated rows have several owners, of which one is the primary owner."""
    owned = Counter((piece.layer, row) for piece in plan.pieces for row in members(piece.rows))
    primary = Counter(
        (p.layer, row)
        for p in plan.pieces
        for row in members(plan.ownership.primary_rows(p.layer, p.machine))
    )
    everything = {(grid.name, row) for grid in plan.graph.computed for row in range(grid.n_rows)}
    assert primary == Counter(everything) and owned.keys() == everything
    for (layer, _), count in owned.items():
        grid = plan.graph[layer]
        assert (
            count == 1 or plan.ownership.is_input_split(layer) or grid.shares_weights or not grid.parameters
        )
    for loss in plan.graph.losses:
        machines = plan.ownership.loss_shards(loss)
        assert sorted(machines) == sorted(p.machine for p in plan.ownership.of(loss)) or not machines
    parameters = sum(plan.n_parameters(machine) for machine in range(len(plan.cluster)))
    assert parameters == plan.graph.n_parameters


@given(plans(shared=True))
def test_what_a_piece_needs_is_what_the_edges_of_its_nodes_say(plan: Plan) -> None:
    expected = Expected(plan.ownership)
    for grid in plan.graph.grids:
        for machine in range(len(plan.cluster)):
            for edge in plan.ownership.edges(grid.name):
                needed = plan.ownership.needed(edge, machine)
                assert set(members(needed)) == expected.needed(edge.consumer, edge.number, machine)
                assert BoxSet.union(needed) == needed


@given(plans(shared=True))
def test_every_operand_lies_in_the_window_that_the_machine_holds(plan: Plan) -> None:
    for program in (*plan.programs, *plan.forward_programs):
        for instruction in program.instructions:
            for operand in (instruction.target, *instruction.sources):
                if not operand.buffer.travels_along_edges or operand.buffer.peer is not None:
                    continue
                layer = operand.buffer.layer
                edges = [edge for edge in plan.ownership.edges(layer) if edge.buffer == operand.buffer]
                window = (
                    plan.ownership.error_window(edges[0], program.machine)
                    if edges
                    else plan.ownership.state_window(layer, program.machine)
                )
                assert not operand.rows - BoxSet((window,)), instruction


@pytest.mark.parametrize(
    ("pieces", "sentence"),
    [
        ([Piece("hidden", 0, 3, 0), Piece("scores", 0, 2, 0)], "do not cover its 4 rows once"),
        ([Piece("hidden", 0, 4, 0)], "'scores' do not cover"),
        ([Piece("hidden", 0, 2, 0), Piece("hidden", 1, 4, 1), Piece("scores", 0, 2, 0)], "do not cover"),
        ([Piece("hidden", 0, 4, 2), Piece("scores", 0, 2, 0)], "on no machine"),
        (
            [Piece("hidden", 0, 2, 0), Piece("hidden", 2, 4, 0), Piece("scores", 0, 2, 0)],
            "two pieces of 'hidden'",
        ),
    ],
)
def test_pieces_that_are_no_partition_are_refused(pieces: list[Piece], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Ownership(two_layers(), 2, tuple(pieces))


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=8), st.integers(0, 200))
def test_boundaries_are_proportional_and_leave_nobody_without_a_row(weights: list[float], spare: int) -> None:
    extent = len(weights) + spare
    met = boundaries(dict(enumerate(weights)), extent)
    sizes = [b - a for a, b in pairwise(met)]
    assert sum(sizes) == extent and min(sizes) >= 1
    for size, weight in zip(sizes, weights, strict=True):
        share = extent * weight / sum(weights)
        assert abs(size - share) <= 1 + 1e-9 or min(extent * w / sum(weights) for w in weights) < 1


def test_a_plan_for_prediction_keeps_the_pieces_that_are_left() -> None:
    plan = partition(two_layers(), Cluster.local(2), batch=4, strategy="balanced")
    assert plan.for_prediction().pieces == plan.pieces
    assert plan.for_prediction().programs == plan.forward_programs


@given(plans(shared=True))
def test_a_plan_survives_the_way_to_another_process(plan: Plan) -> None:
    copy = pickle.loads(pickle.dumps(plan))
    assert copy == plan and hash(copy.graph) == hash(plan.graph)
    assert copy.programs == plan.programs
