"""Costs of instructions: proportional to their work, and counted once, however a step is composed."""

from __future__ import annotations

import pytest

from partita.layers import BoxSet, Conv2D, Dense, HalfSquaredError, Network, SoftmaxCrossEntropy
from partita.partitioner import (
    Cluster,
    Costs,
    Instruction,
    Link,
    Machine,
    MessageCost,
    Op,
    Plan,
    RowSplit,
    StepKind,
    Whole,
    partition,
)
from partita.partitioner.ir.buffer import parse_buffer
from partita.partitioner.ir.program import Operand


def plan(machines: int, *, precision: str = "float32", loss: Whole | None = None) -> Plan:
    """A convolution of a picture, under as many scores as it has pixels."""
    net = Network("costs")
    conv = Conv2D(8, 3, padding="same", name="conv")(net.input("x", shape=(12, 10, 4)))
    scores = Dense(120, name="scores")(conv)
    net.loss = SoftmaxCrossEntropy(name="loss")(scores, net.target("y"))
    cuts: dict[str, RowSplit | Whole] = {"conv": RowSplit(machines), "scores": RowSplit(machines)}
    if loss is not None:
        cuts["loss"] = loss
    return partition(
        net, Cluster.local(machines), batch=16, cuts=cuts, precision=precision, strategy="balanced"
    )


def kernel_s(found: Plan, instruction: Instruction, machine: int = 0) -> float:
    """Without overhead."""
    return found.costs.compute_s(instruction, machine) - found.cluster.machines[machine].instruction_s


def seconds(found: Plan, kind: StepKind = StepKind()) -> dict[str, float]:  # noqa: B008 - frozen
    """Time over all machines by kind of work and layer, without overheads."""
    costs: dict[str, float] = {}
    for program in found.programs_for(kind):
        for instruction in program.instructions:
            if instruction.peer is None:
                key = f"{instruction.op} {instruction.target.buffer}"
                took = kernel_s(found, instruction, program.machine)
                costs[key] = costs.get(key, 0.0) + took
    return costs


def test_pieces_cost_what_the_whole_costs() -> None:
    whole, cut = seconds(plan(1)), seconds(plan(3))
    for key in ("FORWARD conv", "GRAD_INPUT scores<loss", "FUSED_UPDATE scores.parameters"):
        assert cut[key] == pytest.approx(whole[key])
    assert cut["MULTIPLY scores"] + cut["FORWARD scores"] == pytest.approx(whole["FORWARD scores"])
    assert cut["FORWARD loss"] == cut["SUMMARISE loss.summary"] == pytest.approx(whole["FORWARD loss"])


def test_a_machine_that_evaluates_all_scores_pays_for_all() -> None:
    assert seconds(plan(3, loss=Whole(1)))["FORWARD loss"] == pytest.approx(seconds(plan(1))["FORWARD loss"])


def test_learning_in_blocks_saves_a_pass_over_the_gradient() -> None:
    blocks, whole = seconds(plan(1)), seconds(plan(1), StepKind(gradients="whole"))
    apart = whole["GRADIENT scores.gradient"] + whole["UPDATE scores.parameters"]
    assert whole["GRADIENT scores.gradient"] < blocks["FUSED_UPDATE scores.parameters"] < apart


def test_weights_are_read_for_each_micro_batch() -> None:
    whole, machine = plan(1), Cluster.local(1).machines[0]
    read_s = 120 * (12 * 10 * 8 + 1) * 4 / machine.bytes_per_s
    for portions in (1, 4, 16):
        one = seconds(whole.with_micro_batches(portions))[
            "FORWARD scores/0" if portions > 1 else "FORWARD scores"
        ]
        arithmetic_s = 120 * 2 * 12 * 10 * 8 * (16 / portions) / machine.flops_per_s
        assert max(arithmetic_s, read_s) <= one <= 1.02 * (arithmetic_s + read_s)


def test_the_runtime_is_slower_beside_networks_that_fill_the_caches() -> None:
    def costs(nodes: int, machines: int, cold_s: float) -> Costs:
        net = Network("layers")
        net.loss = HalfSquaredError(name="loss")(
            Dense(nodes, name="out")(net.input("x", shape=1024)), net.target("y")
        )
        cluster = Cluster(tuple(Machine(f"m{n}", cold_s=cold_s) for n in range(machines)))
        return Costs(net.graph(), cluster, batch=1)

    def slower_s(nodes: int, machines: int = 2) -> list[float]:
        cold, warm = costs(nodes, machines, 1e-3), costs(nodes, machines, 0.0)
        feed = Instruction(Op.FEED, Operand(parse_buffer("x"), BoxSet.of_rows((0, 1024))))
        messages = [each.message(64, 0, 1) for each in (cold, warm)]
        return [
            cold.compute_s(feed, 0) - warm.compute_s(feed, 0),
            messages[0].send_s - messages[1].send_s,
            messages[0].receive_s - messages[1].receive_s,
        ]

    assert slower_s(256) == pytest.approx([0.0, 0.0, 0.0])  # half a MiB of weights for each machine
    assert slower_s(1 << 16) == pytest.approx([1e-3, 1e-3, 2e-3])
    middle = slower_s(1 << 12)[0]
    assert 0.0 < middle < 1e-3 and slower_s(1 << 14, machines=8)[0] == pytest.approx(middle, rel=0.02)


def test_squares_are_one_pass_over_parameters_and_gradients() -> None:
    found = plan(2)
    took = seconds(found, StepKind(norms=True))["SQUARES norms.squares"]
    assert took == pytest.approx(2 * 4 * found.graph.n_parameters / found.cluster.machines[0].bytes_per_s)


def test_messages_cost_what_they_carry() -> None:
    link = Link(1e-4, 1e9, send_s=1e-5, receive_s=2e-5, send_bytes_per_s=2e9, receive_bytes_per_s=4e9)
    cluster = Cluster((Machine("a"), Machine("b")), link)
    for precision, item, sums in (("float32", 4, 4), ("float64", 8, 8), ("bfloat16", 2, 4)):
        found = plan(3, precision=precision)
        weights = 8 * 3 * 3 * 4 + 8
        expected = {
            Operand(parse_buffer("conv"), BoxSet.of_rows((0, 2))): 2 * 10 * 8 * 16 * item,
            Operand(parse_buffer("conv.parameters"), BoxSet.of_rows((0, 1))): weights * item,
            Operand(parse_buffer("conv.gradient"), BoxSet.of_rows((0, 1))): weights * sums,
            Operand(parse_buffer("loss.summary"), BoxSet.of_rows((1, 2))): 2 * 16 * sums,
            Operand(parse_buffer("norms.squares"), BoxSet.of_rows((1, 2))): 2 * 4 * 8,
        }
        for operand, n_bytes in expected.items():
            assert found.sizes.n_bytes(operand) == n_bytes
            cost = Costs(found.graph, cluster, batch=16, precision=precision).message(n_bytes, 0, 1)
            assert cost == MessageCost(1e-5 + n_bytes / 2e9, n_bytes / 1e9, 1e-4, 2e-5 + n_bytes / 4e9)
            assert cost.total_s == pytest.approx(1.3e-4 + n_bytes * 1.75e-9)


def test_gradients_of_shared_weights_cost_by_the_rows_of_each_machine() -> None:
    found = plan(3)
    costs = [
        kernel_s(found, i) for program in found.programs for i in program.instructions if i.op is Op.GRADIENT
    ]
    assert len(costs) == 3 and all(cost == pytest.approx(costs[0]) for cost in costs)  # 4 rows each
    added = Instruction(
        Op.ADD, Operand(parse_buffer("conv.gradient"), BoxSet.of_rows((0, 1))), accumulate=True
    )
    assert kernel_s(found, added) == pytest.approx(
        2 * 4 * (8 * 36 + 8) / found.cluster.machines[0].bytes_per_s
    )
