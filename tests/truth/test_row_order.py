"""Rows at a border come first where that hides messages; the order of rows changes no bit."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from partita.layers import Dense, Graph, L2Pool2D, LocallyConnected2D, Network, SoftmaxCrossEntropy
from partita.layers.box import BoxSet
from partita.partitioner import Cluster, Op, Plan, Program, RowSplit, partition
from partita.partitioner.ir.buffer import activations
from partita.partitioner.lower import row_order
from tests.draws import examples
from tests.partitioner.interpreter import Interpreter
from tests.partitioner.orders import ORDERS, chooser
from tests.properties.results import assert_same
from tests.truth.interleaved import play, whole

SETTINGS = settings(
    max_examples=examples(4), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture
def at_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers of any size are computed in the order that hides messages."""
    monkeypatch.setattr(row_order, "HIDING_FLOPS", 0.0)


def patches(rows: int, *, padding: str = "valid") -> Graph:
    net = Network("patches")
    layer = net.input("x", shape=(rows, 4, 1))
    for _ in range(2):
        layer = LocallyConnected2D(1, kernel_size=(3, 2), padding=padding)(layer)
    layer = LocallyConnected2D(1, kernel_size=2, padding="same")(L2Pool2D(2, stride=1)(layer))
    net.loss = SoftmaxCrossEntropy()(Dense(4, name="scores")(layer), net.target("y"))
    return net.graph()


GRAPHS = st.builds(patches, st.integers(10, 16), padding=st.sampled_from(["valid", "same"]))


def rows_in_order(program: Program, layer: str) -> list[BoxSet]:
    """The rows of a layer in the order of the program's instructions."""
    found = (i for i in program.instructions if i.op is Op.FORWARD)
    return [i.target.rows for i in found if i.target.buffer == activations(layer)]


def awaited(plan: Plan, program: Program, layer: str) -> BoxSet | None:
    """The rows of a layer that other machines wait for, where this machine has others too; else None."""
    own = plan.ownership.rows(layer, program.machine)
    sent = [m.rows for m in plan.messages if m.source == program.machine and m.buffer == activations(layer)]
    found = BoxSet.union(*sent) if sent else None
    return None if found == own else found


def hides(plan: Plan) -> bool:
    """Whether some layer has rows that nobody waits for beside those that somebody does."""
    layers = [grid.name for grid in plan.graph.computed if grid.layer.by_rows]
    return any(awaited(plan, program, layer) is not None for program in plan.programs for layer in layers)


def cut(graph: Graph, machines: int, micro_batches: int = 1) -> Plan:
    cuts = {grid.name: RowSplit(machines) for grid in graph.computed if grid.name not in graph.losses}
    return partition(graph, Cluster.local(machines), batch=3, cuts=cuts, micro_batches=micro_batches)


@pytest.mark.usefixtures("at_any_size")
@SETTINGS
@given(GRAPHS, st.integers(2, 4), st.integers(0, 1 << 30))
def test_no_bit_changes(graph: Graph, machines: int, seed: int) -> None:
    plan = cut(graph, machines)
    found = play(plan, seed=seed)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(row_order, "HIDING_FLOPS", float("inf"))
        plain = cut(graph, machines)
        assert (plain.programs != plan.programs) == hides(plan)
        assert_same(found, play(plain, seed=0), tolerance=0.0)


@pytest.mark.usefixtures("at_any_size")
@SETTINGS
@given(GRAPHS, st.integers(2, 4), st.sampled_from([1, 3]), st.sampled_from(ORDERS), st.integers(0, 1 << 30))
def test_any_order_of_events_gives_the_same_sums(
    graph: Graph, machines: int, micro_batches: int, order: str, seed: int
) -> None:
    plan = cut(graph, machines, micro_batches)
    Interpreter(plan, plan.programs).run(steps=2, choose=chooser(order, seed))


@pytest.mark.usefixtures("at_any_size")
@SETTINGS
@given(GRAPHS, st.integers(2, 4))
def test_awaited_rows_come_first_and_each_row_once(graph: Graph, machines: int) -> None:
    plan = cut(graph, machines)
    for program in plan.programs:
        for grid in graph.computed:
            own, rows = plan.ownership.rows(grid.name, program.machine), rows_in_order(program, grid.name)
            if not grid.layer.by_rows or not own:
                continue
            assert BoxSet.union(*rows) == own
            assert sum(each.size for each in rows) == own.size
            first = awaited(plan, program, grid.name)
            assert first is None or (len(rows) > 1 and rows[0] == first)


@pytest.mark.slow
def test_rows_of_most_cuts_are_ordered(at_any_size: None) -> None:
    assert [n for n in range(10, 17) for machines in (2, 3, 4) if not hides(cut(patches(n), machines))] == [
        11
    ]


def test_small_layers_are_computed_whole() -> None:
    plan = cut(patches(12), 2)
    for program in plan.programs:
        assert all(
            len(rows_in_order(program, grid.name)) <= 1 for grid in plan.graph.computed if grid.layer.by_rows
        )


@pytest.mark.usefixtures("at_any_size")
def test_the_whole_network_has_the_same_activations() -> None:
    plan = cut(patches(14), 3)
    found, expected = play(plan, seed=5), play(whole(plan), seed=0)
    for name in ("locally_connected_2d", "locally_connected_2d_1", "l2_pool_2d", "locally_connected_2d_2"):
        assert found.states[name].tobytes() == expected.states[name].tobytes()
