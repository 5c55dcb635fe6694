"""Pictures cut into tiles: everything that holds for rows holds place by place."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from partita.layers import (
    BoxSet,
    Conv2D,
    Dense,
    DenseTransposed,
    Edges,
    LocallyConnected2D,
    Network,
    Node,
    SoftmaxCrossEntropy,
)
from partita.partitioner import Cluster, Ownership, Piece, Plan, RowSplit, StepKind, Tiles, partition
from partita.partitioner.assign.cuts import Cut
from tests.draws import examples
from tests.networks import LEARNS, leaky_sum
from tests.partitioner.expected import Expected, members
from tests.partitioner.interpreter import Interpreter
from tests.partitioner.orders import ORDERS, chooser
from tests.plans import kinds, plans
from tests.properties.messages import (
    assert_activations_sent_where_needed,
    assert_errors_sent_towards_owner,
    assert_placeholders_fed_and_never_sent,
    assert_sent_once_and_received_once,
    assert_shared_weights_sent_once,
    of_nodes,
)
from tests.properties.programs import assert_programs_parse_back
from tests.properties.simulated import assert_no_deadlock, assert_step_time_within_bounds

tiled = plans(shared=True, tiles=True)


@settings(max_examples=examples(16))
@given(plan=tiled, kind=kinds, order=st.sampled_from(ORDERS), seed=st.integers(0, 2**32))
def test_any_order_of_a_step_gives_the_same_sums(plan: Plan, kind: StepKind, order: str, seed: int) -> None:
    Interpreter(plan, plan.programs_for(kind)).run(steps=2, choose=chooser(order, seed))


@settings(max_examples=examples(8))
@given(plan=tiled, order=st.sampled_from(ORDERS), seed=st.integers(0, 2**32))
def test_windows_that_share_memory_spoil_nothing(plan: Plan, order: str, seed: int) -> None:
    interpreter = Interpreter(plan, plan.programs, keep=plan.kept)
    interpreter.run(steps=2, choose=chooser(order, seed))


@settings(max_examples=examples(10))
@given(tiled)
def test_messages_are_those_that_the_edges_of_nodes_ask_for(plan: Plan) -> None:
    assert_activations_sent_where_needed(plan)
    assert_placeholders_fed_and_never_sent(plan)
    assert_shared_weights_sent_once(plan)


@settings(max_examples=examples(10))
@given(tiled)
def test_errors_are_sent_towards_the_owner(plan: Plan) -> None:
    assume(any(message.direction == "backward" for message in of_nodes(plan)))
    assert_errors_sent_towards_owner(plan)


@settings(max_examples=examples(10))
@given(tiled)
def test_a_step_takes_at_least_its_critical_path_and_at_most_everything_in_turn(plan: Plan) -> None:
    assert_step_time_within_bounds(plan)


@settings(max_examples=examples(8))
@given(tiled, kinds)
def test_programs_parse_back_and_send_what_was_planned(plan: Plan, kind: StepKind) -> None:
    assert_programs_parse_back(plan, kind)
    assert_sent_once_and_received_once(plan, kind)
    assert_no_deadlock(plan, kind)


@settings(max_examples=examples(8))
@given(tiled)
def test_every_place_is_owned_once_and_so_is_every_parameter(plan: Plan) -> None:
    expected = Expected(plan.ownership)
    for grid in plan.graph.computed:
        primary_rows, every = plan.ownership.primary_rows, plan.ownership.of(grid.name)
        owned = Counter(unit for p in every for unit in members(primary_rows(grid.name, p.machine)))
        boxed = expected.is_boxed(grid.name)
        assert owned == Counter(members(BoxSet((grid.whole,)) if boxed else grid.rows))
        assert not boxed or [p.rows for p in every] == [primary_rows(grid.name, p.machine) for p in every]
    parameters = sum(plan.n_parameters(machine) for machine in range(len(plan.cluster)))
    assert parameters == plan.graph.n_parameters
    copied = {layer for layer in plan.ownership.replicated if not plan.ownership.loss_shards(layer)}
    flops = sum(plan.ownership.flops(p, batch=1) for p in plan.pieces if p.layer not in copied)
    once = (grid for grid in plan.graph.computed if grid.name not in copied)
    assert flops == pytest.approx(sum(grid.flops_per_node * grid.n_nodes for grid in once))


@settings(max_examples=examples(8))
@given(tiled)
def test_what_a_machine_needs_and_touches_lies_in_its_windows(plan: Plan) -> None:
    owned, expected, n_touched = plan.ownership, Expected(plan.ownership), 0
    for program in plan.programs:
        for edge in (edge for grid in plan.graph.grids for edge in owned.edges(grid.name)):
            needed = set(members(owned.needed(edge, program.machine)))
            assert needed == expected.needed(edge.consumer, edge.number, program.machine)
        windows = plan.windows(program)
        for instruction in program.instructions:
            for operand in (instruction.target, *instruction.sources):
                if operand.buffer in windows and operand.buffer.travels_along_edges and operand.rows:
                    window = windows[operand.buffer]
                    assert not (operand.rows - BoxSet((window.box,))), instruction
                    assert window.n_bytes >= plan.sizes.n_bytes(operand)
                    n_touched += 1
    assert n_touched


def picture() -> Network:
    net = Network("picture")
    below = LocallyConnected2D(2, 3, padding="same", name="below")(net.input("x", shape=(9, 8, 1)))
    above = Conv2D(2, 3, name="above")(below)
    net.loss = SoftmaxCrossEntropy(name="loss")(Dense(4, name="scores")(above), net.target("y"))
    return net


def test_tiles_stand_in_rows_and_print_as_they_parse() -> None:
    cuts = {"below": Tiles((3, 1, 0, 2), (2, 2), ((4, 5), (5, 3))), "above": Tiles(4, (1, 4))}
    plan = partition(picture(), Cluster.local(4), batch=2, cuts=cuts)
    assert [(piece.box.text, piece.machine) for piece in plan.ownership.of("below")] == [
        ("0:4x0:5", 3),
        ("0:4x5:8", 1),
        ("4:9x0:5", 0),
        ("4:9x5:8", 2),
    ]
    columns = [piece.columns for piece in plan.ownership.of("above")]
    assert columns == [(0, 2), (2, 3), (3, 4), (4, 6)]
    assert "below   9x8x2  LocallyConnected2D   4:9x0:5  0:4x5:8  4:9x5:8  0:4x0:5" in str(plan)
    (needed,) = plan.ownership.needed(plan.ownership.edges("x")[0], 1)
    assert needed.text == "0:5x4:8"


def test_tiles_are_drawn(tmp_path: Path) -> None:
    """The plan with its boxes; a layer with the places that have receivers, and no others."""
    cuts = {"below": Tiles(4, (2, 2)), "above": Tiles(4, (2, 2))}
    plan = partition(picture(), Cluster.local(4), batch=2, cuts=cuts)
    assert "0:4x4:8" in plan.draw(tmp_path / "plan.svg").read_text()
    assert "below, rows 0:6x3:8" in plan.draw(tmp_path / "above.svg", layer="above").read_text()


def test_where_no_columns_are_cut_the_plan_is_that_of_rows() -> None:
    by_tiles = partition(picture(), Cluster.local(3), batch=2, cuts={"below": Tiles(3, (3, 1))})
    by_rows = partition(picture(), Cluster.local(3), batch=2, cuts={"below": RowSplit(3)})
    assert by_tiles == by_rows
    assert list(map(str, by_tiles.programs)) == list(map(str, by_rows.programs))


def test_a_prediction_of_tiles_is_of_tiles() -> None:
    plan = partition(picture(), Cluster.local(4), batch=2, cuts={"below": Tiles(4, (2, 2))})
    assert plan.for_prediction().programs == plan.for_prediction().forward_programs
    assert plan.for_prediction().ownership.tiled == {"below"}


EDGES = Node(Edges([(0, 0), (5, 3)], nodes=(2, 2, 1)), leaky_sum, *LEARNS[leaky_sum], name="edges")


@pytest.mark.parametrize(
    ("layer", "cut", "sentence"),
    [
        (
            "below",
            Tiles(4, (2, 3)),
            "is cut into (2, 3) tiles for 4 machines; write the tiles down and across",
        ),
        ("below", Tiles(4, 4), "is cut into 4 tiles for 4 machines; write the tiles down and across"),  # type: ignore[arg-type]
        ("below", Tiles(9, (1, 9)), "has 9 rows and 8 columns and cannot be cut into 1 by 9 tiles"),
        (
            "below",
            Tiles(4, (2, 2), ((4, 5), (4, 5))),
            "has 8 columns for 2 tiles, but the sizes are (4, 5); give",
        ),
        ("below", Tiles(4, (2, 2), (4, 5)), "the sizes of its tiles are"),  # type: ignore[arg-type]
        ("below", Tiles((0, 0), (1, 2)), "names a machine twice, (0, 0)"),
        ("below", Tiles((0, 9), (1, 2)), "is put on machine 9"),
        (
            "scores",
            Tiles(4, (2, 2)),
            "cannot be cut into tiles: it has the grid (4,), and tiles are cut from",
        ),
        ("edges", Tiles(4, (2, 2)), "cannot be cut into tiles: it is wired by Edges, which knows no columns"),
        ("decoder", Tiles(2, (1, 2)), "it is fed by all nodes and computed by `forward`, which knows no"),
    ],
)
def test_tiles_that_cannot_be_are_refused(layer: str, cut: Cut, sentence: str) -> None:
    net = picture()
    if layer == "edges":
        net = Network("sparse")
        EDGES(net.input("x", shape=(3, 2, 1)))
    if layer == "decoder":
        net = Network("decoder")
        DenseTransposed((4, 4, 2), name="decoder")(net.input("x", shape=3))
    with pytest.raises(ValueError, match=re.escape(sentence)):
        partition(net, Cluster.local(9), batch=4, cuts={layer: cut})


def test_pieces_that_are_no_grid_of_tiles_are_refused() -> None:
    graph = picture().graph()
    rest = [Piece("above", 0, 7, 0), Piece("scores", 0, 4, 0), Piece("loss", 0, 1, 0)]
    halves = [Piece("below", 0, 9, 0, (0, 4)), Piece("below", 0, 9, 1, (4, 8))]
    assert Ownership(graph, 2, (*halves, *rest)).rows("above", 0) == BoxSet.parse("0:7x0:6")
    for wrong in (halves[:1], [*halves[:1], Piece("below", 0, 5, 1, (4, 8))]):
        with pytest.raises(ValueError, match="'below' do not cover its 9 rows once"):
            Ownership(graph, 2, (*wrong, *rest))
