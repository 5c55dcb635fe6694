"""Every error is summed once, completely, and in one order, for any order of instructions."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.layers import Dense, HalfSquaredError, Network
from partita.partitioner import Cluster, Op, Plan, StepKind, partition
from tests.draws import examples
from tests.partitioner.expected import Expected
from tests.partitioner.interpreter import Interpreter
from tests.partitioner.orders import ORDERS, chooser
from tests.plans import flowing, kinds, plans


@settings(max_examples=examples(60))
@given(plan=plans(shared=True), kind=kinds, order=st.sampled_from(ORDERS), seed=st.integers(0, 2**32))
def test_any_order_of_a_step_gives_the_same_sums(plan: Plan, kind: StepKind, order: str, seed: int) -> None:
    Interpreter(plan, plan.programs_for(kind)).run(steps=2, choose=chooser(order, seed))


@pytest.mark.slow
@settings(max_examples=examples(12))
@given(
    plan=plans(shared=True, micro_batches=3, max_batch=1, max_layers=4),
    kind=flowing,
    order=st.sampled_from(ORDERS),
    seed=st.integers(0, 2**32),
    shares=st.booleans(),
)
def test_any_order_of_several_micro_batches_gives_the_same_sums(
    plan: Plan, kind: StepKind, order: str, seed: int, shares: bool
) -> None:
    """The sums are the same where windows share memory."""
    keep = plan.kept if shares else None
    Interpreter(plan, plan.programs_for(kind), keep=keep).run(steps=2, choose=chooser(order, seed))


@settings(max_examples=examples(24))
@given(plan=plans(shared=True), order=st.sampled_from(ORDERS), seed=st.integers(0, 2**32))
def test_any_order_of_a_prediction_gives_every_state(plan: Plan, order: str, seed: int) -> None:
    alone = plan.for_prediction()
    Interpreter(alone, alone.programs).run(steps=2, choose=chooser(order, seed))


@given(plans(shared=True))
def test_gradients_are_whole_only_where_they_must_be(plan: Plan) -> None:
    expected = Expected(plan.ownership)
    for program in plan.programs:
        learnt = [str(i.target.buffer) for i in program.instructions if i.op is Op.FUSED_UPDATE]
        whole = [str(i.target.buffer) for i in program.instructions if i.op is Op.GRADIENT]
        assert sorted(learnt) == sorted(
            f"{grid.name}.parameters"
            for grid in plan.graph.computed
            if grid.parameters
            and expected.own(grid.name, program.machine)
            and not expected.weight_receivers(grid.name)
        )
        assert sorted(whole) == sorted(
            f"{grid.name}.gradient"
            for grid in plan.graph.computed
            if expected.own(grid.name, program.machine) and expected.weight_receivers(grid.name)
        )
    for kind in (StepKind(gradients="whole"), StepKind(norms=True)):
        for program in plan.programs_for(kind):
            assert not [i for i in program.instructions if i.op is Op.FUSED_UPDATE]


def test_a_kind_is_written_in_one_way(plan_of_two: Plan) -> None:
    training, alone = plan_of_two.graph, plan_of_two.for_prediction().graph
    assert StepKind(norms=True).of(training) == StepKind(gradients="whole", norms=True)
    assert StepKind(norms=True).of(alone) == StepKind(train=False)
    assert StepKind(train=False, gradients="whole").of(training) == StepKind(train=False)
    assert plan_of_two.programs_for(StepKind(norms=True))[0].kind == StepKind(gradients="whole", norms=True)
    assert plan_of_two.programs == plan_of_two.programs_for(StepKind())
    assert plan_of_two.messages == plan_of_two.messages_for(StepKind(gradients="whole"))


@pytest.fixture
def plan_of_two() -> Plan:
    net = Network("two")
    net.loss = HalfSquaredError()(Dense(4)(net.input("x", shape=3)), net.target("y"))
    return partition(net, Cluster.local(2), batch=1, strategy="balanced")
