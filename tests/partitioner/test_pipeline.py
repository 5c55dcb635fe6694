"""Portions of a step: their order on each machine, what is in flight, and what beginning and ending cost."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.layers import BoxSet, Conv2D, Dense, HalfSquaredError, Network
from partita.partitioner import (
    Cluster,
    Instruction,
    Link,
    Machine,
    MessageCost,
    Op,
    Plan,
    RowSplit,
    StepKind,
    Whole,
    parse_program,
    partition,
)
from partita.partitioner.ir.buffer import parse_buffer
from partita.partitioner.ir.pipeline import Pipeline
from partita.partitioner.ir.program import COMPUTES, Operand
from partita.partitioner.lower.pipeline_stages import pipeline_stages
from partita.partitioner.predict.simulate import simulate
from tests.draws import examples
from tests.partitioner.prices import Prices, one_slow
from tests.plans import flowing, plans


def chain(stages: int, *, per_stage: int = 1) -> Network:
    """Equal layers of one node, so many for each stage, and a loss."""
    net = Network("chain")
    states = net.input("x", shape=(1,))
    for n in range(stages * per_stage):
        states = Dense(1, activation="tanh", name=f"h{n}")(states)
    net.loss = HalfSquaredError(name="loss")(states, net.target("y"))
    return net


def stages_of(stages: int, *, batch: int = 12, micro_batches: int = 1) -> Plan:
    cuts = {f"h{n}": Whole(n) for n in range(stages)} | {"loss": Whole(stages - 1)}
    cluster = Cluster(tuple(Machine(f"m{n}") for n in range(stages)), Link(0.0, 1e12))
    return partition(chain(stages), cluster, batch=batch, cuts=cuts, micro_batches=micro_batches)


def written(pipeline: Pipeline) -> str:
    """`f0 b0+`: forward and backward passes; `+` where an update follows."""
    passes = pipeline.passes(train=True)
    return " ".join(f"{each.direction[0]}{each.micro_batch}{'+' * each.updates}" for each in passes)


@pytest.mark.parametrize(
    ("pipeline", "order", "slots", "delay"),
    [
        (Pipeline(), "f0 b0+", 1, 0.0),
        (Pipeline(3), "f0 b0 f1 b1 f2 b2+", 3, 0.0),
        (Pipeline(3, stage=1), "f0 f1 b0 f2 b1 b2+", 3, 0.0),
        (Pipeline(2, stage=5), "f0 f1 b0 b1+", 2, 0.0),
        (Pipeline(overlap=3), "f0 b0+ f1 b1+ f2 b2+", 1, 0.0),
        (Pipeline(overlap=4, stage=1), "f0 f1 b0+ f2 b1+ f3 b2+ b3+", 2, 3 / 4),
        (Pipeline(overlap=4, stage=2), "f0 f1 f2 b0+ f3 b1+ b2+ b3+", 3, 5 / 4),
        (Pipeline(2, 2, stage=1), "f0 f1 b0 f2 b1+ f3 b2 b3+", 3, 1 / 2),
    ],
)
def test_one_forward_one_backward(pipeline: Pipeline, order: str, slots: int, delay: float) -> None:
    assert written(pipeline) == order
    assert (pipeline.slots, pipeline.delay) == (slots, delay)


@given(micro_batches=st.integers(1, 4), overlap=st.integers(1, 6), stage=st.integers(0, 5))
def test_a_slot_is_free_before_another_micro_batch_takes_it(
    micro_batches: int, overlap: int, stage: int
) -> None:
    pipeline = Pipeline(micro_batches, overlap, stage)
    held: dict[int, int] = {}
    for each in pipeline.passes(train=True):
        slot = each.micro_batch % pipeline.slots
        if each.direction == "forward":
            assert slot not in held, f"{each} takes the place of {held[slot]}"
            held[slot] = each.micro_batch
        if each.updates:
            for micro_batch in pipeline.micro_batches_of(pipeline.minibatch_of(each.micro_batch)):
                assert held.pop(micro_batch % pipeline.slots) == micro_batch
    assert not held


def found_depths(plan: Plan) -> tuple[int, ...]:
    return pipeline_stages(len(plan.cluster), plan.messages)


def test_depths_count_machines_to_the_loss() -> None:
    assert found_depths(stages_of(4)) == (3, 2, 1, 0)
    wide = chain(3)
    assert found_depths(partition(wide, Cluster.local(1), batch=1)) == (0,)


def test_machines_of_a_vertical_cut_stand_side_by_side() -> None:
    net = Network("both")
    states = Dense(4, name="a")(net.input("x", shape=(3,)))
    states = Dense(4, name="c")(Dense(4, name="b")(states))
    net.loss = HalfSquaredError(name="loss")(states, net.target("y"))
    cuts = {"a": RowSplit((0, 1)), "b": RowSplit((0, 1)), "c": Whole(2), "loss": Whole(2)}
    assert found_depths(partition(net, Cluster.local(3), batch=2, cuts=cuts)) == (1, 1, 0)
    back = cuts | {"b": Whole(2), "c": Whole(0), "loss": Whole(0)}  # 0 waits for 2 and 2 for 0
    assert found_depths(partition(net, Cluster.local(3), batch=2, cuts=back)) == (0, 1, 0)


def test_machines_that_share_weights_have_one_pipeline_stage() -> None:
    net = Network("shared")
    states = Conv2D(2, kernel_size=1, name="conv")(net.input("x", shape=(4, 1, 1)))
    net.loss = HalfSquaredError(name="loss")(states, net.target("y"))
    cuts = {"conv": RowSplit((0, 1)), "loss": Whole(1)}
    assert found_depths(partition(net, Cluster.local(2), batch=2, cuts=cuts)) == (0, 0)


def test_names_with_numbers() -> None:
    copy, whole = parse_buffer("h1<h2#1/12@3"), parse_buffer("h1")
    assert str(parse_buffer("h1<h2#1@3").numbered(12)) == str(copy) == "h1<h2#1/12@3"
    assert str(copy.undivided) == "h1<h2#1@3" and str(copy.sent) == "h1<h2#1/12" and copy.micro_batch == 12
    assert whole.micro_batch is None and whole.undivided == whole and whole.place(2) == whole
    assert str(parse_buffer("h1/5").place(2)) == "h1/1" and str(parse_buffer("h1/5").place(9)) == "h1/5"
    assert str(parse_buffer("conv.gradient/5@2").place(2)) == "conv.gradient@2"


@pytest.mark.parametrize("text", ["", "1h", "h1.", "h1.wrong", "h1<", "h1/x", "h1@", "h1<h2.sums"])
def test_text_that_is_no_buffer_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a buffer"):
        parse_buffer(text)


@given(plan=plans(shared=True, micro_batches=3, max_layers=4), kind=flowing)
@settings(max_examples=examples(8))
def test_programs_of_micro_batches_parse_back(plan: Plan, kind: StepKind) -> None:
    for program in plan.programs_for(kind):
        text = str(program)
        assert parse_program(program.machine, text, program.kind, program.pipeline) == program


@given(plan=plans(shared=True, micro_batches=3, max_layers=5), kind=flowing, data=st.data())
@settings(max_examples=examples(8))
def test_no_order_of_micro_batches_deadlocks(plan: Plan, kind: StepKind, data: st.DataObject) -> None:
    machines = len(plan.cluster)
    slow = data.draw(st.integers(0, machines))
    for programs in (plan.programs_for(kind), plan.forward_programs):
        simulate(programs, one_slow(slow), plan.sizes)


def played(plan: Plan, kind: StepKind = StepKind(), *, learning_s: float = 0.0) -> float:  # noqa: B008 - frozen
    """The step where each way through a stage takes a second, and messages no time."""

    def seconds(instruction: Instruction, machine: int) -> float:
        if instruction.op is Op.FUSED_UPDATE:
            return learning_s
        is_stage = instruction.target.buffer.layer.startswith("h")
        return float(is_stage and instruction.op in (Op.FORWARD, Op.GRAD_PREACTIVATION))

    prices = Prices(seconds, lambda n_bytes, source, destination: MessageCost(0.0, 0.0, 0.0, 0.0))
    return simulate(plan.programs_for(kind), prices, plan.sizes).step_s


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("micro_batches", [1, 2, 4, 12])
def test_the_bubble_is_as_long_as_the_formula_says(stages: int, micro_batches: int) -> None:
    """Equal stages take m + stages - 1 forward and backward passes for m micro-batches."""
    plan = stages_of(stages, micro_batches=micro_batches)
    assert played(plan) == 2.0 * (micro_batches + stages - 1)


@pytest.mark.parametrize("stages", [2, 3])
def test_overlapped_minibatches_wait_only_at_the_beginning_and_the_end(stages: int) -> None:
    """Learning is done while others compute: each minibatch more takes its own time and nothing else."""
    plan = stages_of(stages)
    few, many = (played(plan, StepKind(overlap=n), learning_s=1.0) for n in (6, 12))
    assert many - few == 6 * 3.0
    assert played(plan, learning_s=1.0) > 3.0


def in_flight(plan: Plan, kind: StepKind, machine: int) -> int:
    """The most portions that a machine's kernels have begun and not ended at a time, whoever is slow."""
    program = plan.programs_for(kind)[machine]
    most = 0
    for slow in range(len(plan.cluster)):
        prices = Prices(
            lambda _, m, slow=slow: 50.0 if m == slow else 1.0,  # type: ignore[misc]
            lambda n_bytes, source, destination: MessageCost(0.1, 0.0, 0.1, 0.0),
        )
        found = simulate(plan.programs_for(kind), prices, plan.sizes)
        bars = [bar for bar in found.bars if bar.machine == machine and found.instruction(bar).op in COMPUTES]
        spans: dict[int, list[float]] = {}
        for bar in bars:
            i = program.instructions[bar.position]
            for operand in (i.target, *i.sources):
                number = operand.buffer.micro_batch
                if number is not None and not operand.buffer.layer.startswith(("x", "y")):
                    spans.setdefault(number, []).extend((bar.start_s, bar.stop_s))
        for start in (min(times) for times in spans.values()):
            most = max(most, sum(min(times) <= start < max(times) for times in spans.values()))
    return most


def test_what_is_in_flight_is_bounded_however_many_minibatches_there_are() -> None:
    plan, kind = stages_of(3), StepKind(overlap=8)
    assert [in_flight(plan, kind, machine) for machine in range(3)] == [3, 2, 1]
    for machine in range(3):
        few, many = (plan.memory_bytes(machine, kind=StepKind(overlap=n)) for n in (4, 20))
        assert few == many


def test_micro_batches_take_no_more_memory_than_the_batch() -> None:
    one, four = (stages_of(3, batch=64, micro_batches=n) for n in (1, 4))
    for machine in range(3):
        assert four.memory_bytes(machine) <= one.memory_bytes(machine) + 4 * 8 * 64  # windows begin on lines


def test_micro_batches_divide_the_batch() -> None:
    plan = stages_of(2)
    assert plan.with_micro_batches(4).micro_batches == 4
    assert plan.with_micro_batches(4).with_micro_batches(1) == plan
    with pytest.raises(ValueError, match=r"a batch of 12 .* into 5 equal micro-batches; .* for example 4"):
        plan.with_micro_batches(5)
    with pytest.raises(ValueError, match=r"number of micro-batches is 0; write a whole number"):
        partition(chain(1), Cluster.local(), batch=4, micro_batches=0)
    assert "batch 12 as 4 micro-batches of 3" in str(plan.with_micro_batches(4))


def test_messages_name_their_micro_batch() -> None:
    plan = stages_of(2, micro_batches=2)
    found = [(str(m.buffer), m.source, m.destination, m.n_bytes) for m in plan.messages]
    assert found == [("h0/0", 0, 1, 24), ("h0<h1/0", 1, 0, 24), ("h0/1", 0, 1, 24), ("h0<h1/1", 1, 0, 24)]
    assert sum(m.n_bytes for m in plan.messages) == sum(m.n_bytes for m in plan.undivided_messages)
    assert Operand(parse_buffer("h0/1"), BoxSet.of_rows((0, 1))) in [
        i.target for i in plan.programs[1].instructions
    ]
