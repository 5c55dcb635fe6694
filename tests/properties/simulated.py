"""Assertions over simulated steps: no deadlock, and a time between its bounds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from partita.partitioner import (
    Op,
    Plan,
    StepKind,
)
from partita.partitioner.ir.program import COMPUTES
from partita.partitioner.predict.simulate import simulate
from tests.partitioner.prices import one_slow


def critical_path(plan: Plan) -> float:
    """When everything would be done if every machine had threads and links for all that is ready."""
    programs, costs = plan.programs, plan.costs
    ends: dict[tuple[int, int], float] = {}
    senders = {
        (program.machine, instruction.peer, instruction.target.buffer): (program.machine, n)
        for program in programs
        for n, instruction in enumerate(program.instructions)
        if instruction.op is Op.SEND
    }

    def end(machine: int, n: int) -> float:
        if (machine, n) not in ends:
            instruction = programs[machine].instructions[n]
            start = max((end(machine, k) for k in instruction.after), default=costs.step_s(machine))
            if instruction.op is Op.RECV:
                source = senders[instruction.peer or 0, machine, instruction.target.buffer.sent]
                sent = programs[source[0]].instructions[source[1]].target
                cost = costs.message(plan.sizes.n_bytes(sent), source[0], machine)
                ends[machine, n] = max(start, end(*source) + cost.total_s - cost.send_s)
            elif instruction.op is Op.SEND:
                n_bytes = plan.sizes.n_bytes(instruction.target)
                ends[machine, n] = start + costs.message(n_bytes, machine, instruction.peer or 0).send_s
            else:
                ends[machine, n] = start + costs.compute_s(instruction, machine)
        return ends[machine, n]

    return max(end(p.machine, n) for p in programs for n in range(len(p)))


def assert_no_deadlock(plan: Plan, kind: StepKind) -> None:
    """Asserts that a step and a prediction end, whichever machine is slow."""
    for programs in (plan.programs_for(kind), plan.for_prediction().programs):
        for slow in range(len(programs) + 1):
            simulate(programs, one_slow(slow), plan.sizes)


def assert_step_time_within_bounds(plan: Plan) -> None:
    """Asserts that a step takes at least its critical path, and at most all its work one after another."""
    costs = plan.costs
    everything = sum(costs.step_s(m) for m in range(len(plan.cluster))) + sum(
        costs.compute_s(i, p.machine)
        if i.op in COMPUTES
        else costs.message(plan.sizes.n_bytes(i.target), p.machine, i.peer or 0).total_s
        for p in plan.programs
        for i in p.instructions
        if i.op is not Op.RECV
    )
    busy = [
        sum(costs.compute_s(i, p.machine) for i in p.instructions if i.op in COMPUTES) for p in plan.programs
    ]
    step = plan.predicted_step_s
    assert max([critical_path(plan), *busy]) <= step * (1 + 1e-9) and step <= everything * (1 + 1e-9)
    cores = tuple(replace(machine, cores=2) for machine in plan.cluster.machines)
    apart = replace(plan, cluster=replace(plan.cluster, machines=cores)).simulated_step
    assert apart.busy_s == pytest.approx(busy)  # and where messengers have no core of their own, more:
    assert all(a >= b * (1 - 1e-9) for a, b in zip(plan.simulated_step.busy_s, apart.busy_s, strict=True))
    if len(plan.cluster) == 1:
        assert step == pytest.approx(everything)
