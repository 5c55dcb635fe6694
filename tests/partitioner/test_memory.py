"""The memory that a plan reports for a part is what the engine allocates for it, to the byte."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.engine import SGD, Adagrad, Adam, Optimizer
from partita.engine.numerics import storage
from partita.engine.runtime.buffers import Buffers, Vectors
from partita.engine.runtime.compute import Computations
from partita.engine.runtime.feed import MessageFeed
from partita.engine.runtime.local_optimizer import LocalOptimizer
from partita.engine.runtime.updates import GradientAccumulation
from partita.layers import (
    BoxSet,
    Conv2D,
    Dense,
    HalfSquaredError,
    LocallyConnected2D,
    Network,
    SoftmaxCrossEntropy,
)
from partita.partitioner import Cluster, Plan, Program, StepKind, partition
from partita.partitioner.ir.buffer import parse_buffer
from partita.partitioner.lower.arena import ALIGNMENT, arena_bytes
from partita.partitioner.predict.memory import scratch_bytes
from tests.plans import kinds, plans

PRECISIONS = ["float32", "float64", "bfloat16"]

drawn = st.tuples(st.booleans(), st.sampled_from(PRECISIONS)).flatmap(
    lambda how: plans(losses=how[0], precision=how[1], shared=True)
)


@given(drawn, kinds, st.sampled_from([None, ()]))
def test_windows_lie_where_the_engine_allocates_them(
    plan: Plan, kind: StepKind, keep: tuple[str, ...] | None
) -> None:
    for program in plan.programs_for(kind):
        planned = plan.windows(program, keep=keep)
        buffers = Buffers(plan, program.machine, program, vectors_of(plan, program), keep=keep)
        assert buffers.n_bytes == arena_bytes(planned)
        bases = set()
        for name, window in planned.items():
            array = buffers[name].array
            assert (window.box[0], window.shape) == (buffers[name].rows, array.shape)
            dtype = np.dtype("int64") if window.dtype == "int64" else storage(window.dtype)
            assert (dtype, window.n_bytes) == (array.dtype, array.nbytes)
            bases.add(array.ctypes.data - window.offset)
        assert len(bases) <= 1 and all(base % ALIGNMENT == 0 for base in bases)


def vectors_of(plan: Plan, program: Program) -> Vectors:
    return Vectors(plan, program.machine, gradient=program.kind.gradients == "whole")


@given(drawn, kinds)
def test_a_window_holds_all_rows_that_its_program_names(plan: Plan, kind: StepKind) -> None:
    named = [
        (operand, planned[operand.buffer])
        for program in plan.programs_for(kind)
        for planned in (plan.windows(program),)
        for instruction in program.instructions
        for operand in (instruction.target, *instruction.sources)
        if operand.buffer in planned
    ]
    assert named
    assert not any(operand.rows - BoxSet((window.box,)) for operand, window in named)


@given(drawn, kinds)
def test_what_is_in_no_window_lies_in_the_vectors(plan: Plan, kind: StepKind) -> None:
    """A machine has a window for weights that it borrows, for their gradient, and for a sum of gradients."""
    for program in plan.programs_for(kind):
        windows = {str(buffer) for buffer in plan.windows(program)}
        for layer, owned in (
            (grid.name, plan.ownership.rows(grid.name, program.machine)) for grid in plan.graph.computed
        ):
            borrows = bool(owned) and program.machine in plan.ownership.weight_receivers(layer)
            sums = (
                kind.of(plan.graph) == StepKind() and bool(owned) and plan.ownership.weight_receivers(layer)
            )
            assert (f"{layer}.parameters" in windows) == borrows
            if program.kind.train:
                assert (f"{layer}.gradient" in windows) == bool(borrows or sums)


@given(drawn, kinds, st.sampled_from([SGD(0.1), Adagrad(0.1), Adam(0.1)]), st.booleans())
def test_memory_is_that_of_windows_vectors_and_scratch(
    plan: Plan, kind: StepKind, optimizer: Optimizer, downpour: bool
) -> None:
    for program in plan.programs_for(kind):
        machine, vectors = program.machine, vectors_of(plan, program)
        keep = plan.kept if program.kind.train else None
        buffers = Buffers(plan, machine, program, vectors, keep=keep)
        held = [vectors.parameters, vectors.gradient, *([] if vectors.copy is None else [vectors.copy])]
        if program.kind.train:
            held += optimizer.state(vectors.parameters.size, vectors.parameters.dtype).values()
        if program.kind.train and downpour:
            accumulation = GradientAccumulation(optimizer, vectors)
            held += [accumulation.accumulated, accumulation.in_flight]
        expected = buffers.n_bytes + sum(vector.nbytes for vector in held)
        planned = plan.memory_bytes(
            machine,
            kind=kind,
            driver="downpour" if downpour else "session",
            optimizer_vectors=len(optimizer.state(0)),
        )
        threads = plan.cluster.machines[machine].threads
        assert planned == expected + scratch_bytes(plan.ownership, program, plan.sizes, threads=threads)


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("units", [3, 700])
def test_scratch_is_what_the_engine_takes(units: int, threads: int) -> None:
    """Blocks of whole rows, for all threads; small layers in one."""
    net = Network("wide")
    picture = net.input("x", shape=(8, 8, 10))
    hidden = LocallyConnected2D(4, 3, name="local")(Conv2D(2, 3, padding="same", name="conv")(picture))
    net.loss = HalfSquaredError(name="loss")(Dense(units, name="scores")(hidden), net.target("y"))
    plan = partition(net, Cluster.local(1, threads=threads), batch=2)
    (program,) = plan.programs
    vectors = Vectors(plan, 0, gradient=False)
    buffers = Buffers(plan, 0, program, vectors)
    computations = Computations(buffers, MessageFeed(), LocalOptimizer(SGD(0.1), vectors))
    computations.close()
    planned = scratch_bytes(plan.ownership, program, plan.sizes, threads=threads)
    assert planned <= computations.scratch_bytes <= planned + 2 * ALIGNMENT


def test_labels_take_eight_bytes_in_any_precision() -> None:
    net = Network("labels")
    net.loss = SoftmaxCrossEntropy(name="loss")(
        Dense(3, name="scores")(net.input("x", shape=4)), net.target("y")
    )
    for precision in PRECISIONS:
        plan = partition(net, Cluster.local(1), batch=7, precision=precision)
        label = plan.windows(plan.programs[0])[parse_buffer("y")]
        assert (label.shape, label.dtype, label.n_bytes) == ((1, 7), "int64", 56)
    # states 4 + 3 + 1 and errors 3, each on lines of its own; labels
    windows = 128 + 128 + 64 + 128 + 64
    plan = partition(net, Cluster.local(1), batch=7)
    # 3 x 4 weights and 3 biases, gradients accumulated and in flight, a rule's vector; a block to learn in
    assert plan.memory_bytes(0) == windows + (4 + 1) * 15 * 4


def test_a_program_of_another_machine_is_not_played() -> None:
    net = Network("two")
    net.loss = SoftmaxCrossEntropy()(Dense(4)(net.input("x", shape=4)), net.target("y"))
    plan = partition(net, Cluster.local(2), batch=1, strategy="balanced")
    with pytest.raises(AssertionError, match="the program of machine 1 on machine 0"):
        Buffers(plan, 0, plan.programs[1], Vectors(plan, 0))


def test_bfloat16_is_for_what_travels_and_float32_for_sums() -> None:
    net = Network("kinds")
    conv = Conv2D(2, 3, name="conv")(net.input("x", shape=(6, 4, 1)))
    net.loss = SoftmaxCrossEntropy(name="loss")(Dense(4, name="scores")(conv), net.target("y"))
    plan = partition(net, Cluster.local(2), batch=3, precision="bfloat16", strategy="balanced")
    home, other = (plan.windows(program) for program in plan.programs_for(StepKind()))
    kinds_of = {str(name): window.dtype for name, window in (home | other).items()}
    assert kinds_of == {
        "x": "bfloat16",
        "y": "int64",
        "conv": "bfloat16",
        "scores": "bfloat16",
        "loss": "float32",
        "loss.summary": "float32",
        "scores<loss": "bfloat16",
        "conv<scores": "bfloat16",
        "conv<scores@0": "bfloat16",
        "conv<scores@1": "bfloat16",
        "conv.parameters": "bfloat16",
        "conv.gradient": "float32",
        "conv.gradient@1": "float32",
    }
    weights = parse_buffer("conv.parameters")
    assert weights in other and weights not in home
    assert other[weights].n_bytes == 2 * (2 * 9 + 2)
