"""What a plan says that a part takes is what the engine allocates for it, to the byte."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.engine.runtime.buffers import Buffers, Vectors
from partita.layers import Dense, Network, SoftmaxCrossEntropy
from partita.partitioner import Cluster, Plan, Program, partition
from tests.plans import plans

drawn = st.tuples(st.booleans(), st.sampled_from(["float32", "float64"])).flatmap(
    lambda how: plans(losses=how[0], precision=how[1], shared=True)
)


@given(drawn)
def test_windows_take_what_the_engine_allocates(plan: Plan) -> None:
    for program in (*plan.programs, *plan.upward_programs):
        planned = plan.windows(program)
        buffers = Buffers(plan, program.machine, program)
        assert list(planned) == list(buffers.windows)
        for name, window in planned.items():
            array = buffers[name].array
            assert (window.rows, window.shape) == (buffers[name].rows, array.shape)
            assert (np.dtype(window.dtype), window.n_bytes) == (array.dtype, array.nbytes)
        assert sum(window.n_bytes for window in planned.values()) == buffers.n_bytes


@given(drawn)
def test_a_window_holds_all_rows_that_its_program_names(plan: Plan) -> None:
    for program in (*plan.programs, *plan.upward_programs):
        planned = plan.windows(program)
        for instruction in program.instructions:
            for operand in (instruction.target, *instruction.sources):
                if operand.buffer in planned:
                    start, stop = planned[operand.buffer].rows
                    assert all(start <= a < b <= stop for a, b in operand.rows)


@given(drawn)
def test_memory_is_the_windows_and_five_vectors_or_two_where_nothing_is_trained(plan: Plan) -> None:
    for program in plan.programs:
        buffers, vectors = Buffers(plan, program.machine, program), Vectors(plan, program.machine)
        count = 5 if plan.graph.losses else 2
        assert plan.memory_bytes(program.machine) == buffers.n_bytes + count * vectors.parameters.nbytes
        assert vectors.parameters.nbytes == vectors.gradient.nbytes


def test_labels_take_eight_bytes_in_any_precision() -> None:
    net = Network("labels")
    net.loss = SoftmaxCrossEntropy(name="loss")(
        Dense(3, name="scores")(net.input("x", shape=4)), net.target("y")
    )
    for precision in ("float32", "float64"):
        plan = partition(net, Cluster.local(1), batch=7, precision=precision)
        label = plan.windows(plan.programs[0])["y"]
        assert (label.shape, label.dtype, label.n_bytes) == ((1, 7), "int64", 56)
    # states 4 + 3 + 1, errors 3; labels; 3 x 4 weights and 3 biases, five times
    plan = partition(net, Cluster.local(1), batch=7)
    assert plan.memory_bytes(0) == (4 + 3 + 1 + 3) * 7 * 4 + 7 * 8 + 5 * 15 * 4


def test_a_program_of_another_machine_is_not_played() -> None:
    net = Network("two")
    net.loss = SoftmaxCrossEntropy()(Dense(4)(net.input("x", shape=4)), net.target("y"))
    plan = partition(net, Cluster.local(2), batch=1)
    with pytest.raises(AssertionError, match="the program of machine 1 on machine 0"):
        Buffers(plan, 0, Program(1, plan.programs[1].instructions))
