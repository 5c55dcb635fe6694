"""The plan as text."""

from __future__ import annotations

import pytest
from hypothesis import given

from partita.layers import Dense, LocallyConnected2D, Network, SoftmaxCrossEntropy
from partita.layers.text import counted
from partita.partitioner import Cluster, InputSplit, Machine, Plan, partition
from partita.partitioner.ir.buffer import parse_buffer
from partita.partitioner.table import gap, readable_bytes
from tests.plans import plans


@given(plans(shared=True))
def test_every_plan_prints(plan: Plan) -> None:
    lines = str(plan).splitlines()
    for grid in plan.graph.computed:
        (row,) = [line for line in lines if line.split()[:2] == [grid.name, "x".join(map(str, grid.shape))]]
        cells = row.split()[-len(plan.cluster) :]
        pieces = {piece.machine: piece for piece in plan.ownership.of(grid.name)}
        for machine, cell in enumerate(cells):
            piece = pieces.get(machine)
            shown = "-" if piece is None else f"{piece.start}:{piece.stop}"
            inputs = "" if piece is None or piece.inputs is None else "/{}:{}".format(*piece.inputs)
            assert cell == shown + inputs
    (sentence,) = [line for line in lines if f"{counted(len(plan.messages), 'message')} a step" in line]
    states, sums = plan.travelling
    and_sums = f"and {counted(sums, 'partial sum')} " if sums else ""
    assert f"{counted(states, 'activation')} {and_sums}travel" in sentence
    assert any(line.startswith("critical path: machine ") for line in lines)


def test_the_table_of_a_small_plan() -> None:
    net = Network("digits")
    hidden = LocallyConnected2D(8, kernel_size=3, name="hidden")(net.input("image", shape=(8, 8, 1)))
    net.loss = SoftmaxCrossEntropy(name="loss")(Dense(10, name="scores")(hidden), net.target("digit"))
    lines = str(partition(net, Cluster.local(2), batch=32, strategy="balanced")).splitlines()
    assert lines[0] == "plan of digits: 2 machines, batch 32, float32, 5,770 parameters"
    assert [line.split() for line in lines[2:6]] == [
        ["layer", "grid", "kind", "local0", "local1"],
        ["hidden", "6x6x8", "LocallyConnected2D", "0:3", "3:6"],
        ["scores", "10", "Dense", "0:5", "5:10"],
        ["loss", "1", "SoftmaxCrossEntropy", "0:1", "0:1"],
    ]
    assert lines[7].split()[0] == "machine" and lines[8].split()[:2] == ["local0", "2,885"]
    assert max(map(len, lines)) <= 100
    # 144 states either way and two numbers of the scores; errors of 288 nodes
    assert lines[11].startswith("6 messages a step, 72.5 KiB; 288 activations travel")
    assert lines[12].startswith("predicted step ") and "no plan is below" in lines[12]
    assert max(map(len, lines)) <= 100
    assert lines[14].startswith("  machine ")


def test_a_machine_that_is_a_gpu_says_so() -> None:
    net = Network("digits")
    net.loss = SoftmaxCrossEntropy()(Dense(10, name="scores")(net.input("x", shape=4)), net.target("digit"))
    cluster = Cluster((Machine("a"), Machine("b", device="cuda:1")))
    lines = str(partition(net, cluster, batch=32, strategy="balanced")).splitlines()
    (header,) = [n for n, line in enumerate(lines) if line.startswith("machine")]
    assert lines[header].split()[-4:] == ["computing", "sending", "waiting", "idle"]
    assert lines[header + 1].split()[:2] == ["a", "25"]
    assert lines[header + 2].startswith("b (cuda:1)")
    assert str(cluster) == "2 machines (a: 1 thread, b (cuda:1): 1 thread)"


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 * 2**20, "3.0 MiB"), (5 * 2**40, "5120.0 GiB")],
)
def test_bytes_are_readable(n_bytes: int, text: str) -> None:
    assert readable_bytes(n_bytes) == text


def test_a_plan_by_inputs_explains_its_own_cells_and_counts_its_sums() -> None:
    net = Network("two")
    hidden = Dense(12, activation="tanh", name="hidden")(net.input("x", shape=4))
    net.loss = SoftmaxCrossEntropy(name="loss")(Dense(6, name="scores")(hidden), net.target("digit"))
    cuts = {"scores": InputSplit(2, replicated=True)}
    for portions in (1, 4):
        plan = partition(
            net, Cluster.local(2), batch=32, strategy="balanced", cuts=cuts, micro_batches=portions
        )
        lines = str(plan).splitlines()
        assert "scores  6     Dense                0:6/0:6  0:6/6:12" in lines
        assert "0:6/0:6: activations of rows 0:6, with the weights for rows 0:6 of the input" in lines
        assert any("; 0 activations and 12 partial sums travel (connectivity - 1)" in line for line in lines)
        waits = [line for line in lines if line.startswith("  machine ")]
        assert portions > 1 or any("for partial sums of scores from machine" in line for line in waits)
        assert max(map(len, lines)) <= 100


@pytest.mark.parametrize(
    ("step_s", "words"),
    [
        (1e-3, "no plan is below 1.00 ms: none is faster"),
        (1.081e-3, "no plan is below 1.00 ms: 1.08x faster is not ruled out"),
        (2.16e-3, "no plan is below 1.00 ms: 2.2x faster is not ruled out"),
    ],
)
def test_the_gap_is_reported_as_a_factor(step_s: float, words: str) -> None:
    assert gap(step_s, 1e-3) == words


@pytest.mark.parametrize(
    ("buffer", "words"),
    [
        ("h1/2", "activations of h1"),
        ("h2.sums/1@3", "partial sums of h2"),
        ("h2.deltas/0@1", "gradients of h2"),
        ("h1<h2#1/2@3", "gradients of h1"),
        ("loss.summary/1", "summary of loss"),
        ("conv.parameters/1", "weights of conv"),
        ("conv.gradient@2", "weight gradient of conv"),
        ("norms.squares", "sums of squares"),
    ],
)
def test_what_travels_has_a_name(buffer: str, words: str) -> None:
    assert parse_buffer(buffer).description == words
