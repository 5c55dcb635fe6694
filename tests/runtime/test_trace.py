"""Traces: every instruction once, after what it waits for, and no message before it was sent."""

from __future__ import annotations

import math
import threading
from itertools import pairwise

import numpy as np
import pytest

from partita.engine import SGD, Session
from partita.engine.parameters import initialise
from partita.engine.protocol.clocks import Offset
from partita.engine.protocol.instruction_scheduler import AHEAD
from partita.engine.protocol.messages import Tensor
from partita.engine.run.session import Hosts
from partita.engine.runtime.trace import COMMUNICATION, PartTrace, Recorder, StepTrace
from partita.layers import Dense, Network, SoftmaxCrossEntropy
from partita.partitioner import Cluster, Op, Plan, Program, parse_program, partition
from partita.partitioner.ir.program import COMPUTES

STEPS = 3


def small(machines: int, *, threads: int = 1) -> Plan:
    net = Network("small")
    hidden = Dense(6, activation="tanh", name="hidden")(net.input("x", shape=(5,)))
    net.loss = SoftmaxCrossEntropy()(Dense(4, name="scores")(hidden), net.target("label"))
    cluster = Cluster.local(machines=machines, threads=threads)
    return partition(net, cluster, batch=4, precision="float64")


def batch() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {"x": rng.normal(size=(4, 5)), "label": rng.integers(0, 4, 4)}


def played(plan: Plan, hosts: Hosts) -> list[StepTrace]:
    with Session(plan, 0, train=True, optimizer=SGD(0.1), hosts=hosts) as session:
        found = [session.step(batch(), collect=("parameters",), trace=True).trace for _ in range(STEPS)]
        for clock in session.clocks():  # Linux has one monotonic clock for all processes: the truth is zero
            assert abs(clock.offset_s) <= clock.uncertainty_s < 1.0
    return [trace for trace in found if trace is not None]


@pytest.mark.parametrize(
    ("hosts", "machines", "threads"),
    [("inline", 1, 1), ("threads", 3, 2), ("processes", 2, 1)],
)
def test_traces_keep_the_order_of_programs_and_messages(hosts: Hosts, machines: int, threads: int) -> None:
    plan = small(machines, threads=threads)
    traces = played(plan, hosts)
    assert len(traces) == STEPS
    for trace in traces:
        assert [part.program for part in trace.parts] == list(plan.programs)
        for part in trace.parts:
            check_part(part, hosts)
        check_messages(trace, plan)
    for before, after in pairwise(traces):
        for first, then in zip(before.parts, after.parts, strict=True):
            assert first.over_s <= then.began_s + first.uncertainty_s + then.uncertainty_s


def check_part(part: PartTrace, hosts: Hosts) -> None:
    """Each instruction was carried out, in the step, after what it waits for, by the right thread."""
    assert np.isfinite(part.started_s).all() and np.isfinite(part.stopped_s).all()
    assert (part.began_s <= part.ready_s).all() and (part.stopped_s <= part.over_s).all()
    assert (part.ready_s <= part.started_s).all() and (part.started_s <= part.stopped_s).all()
    for n, instruction in enumerate(part.program.instructions):
        arrived = part.arrived_s[n]
        if instruction.op is Op.RECV:
            assert arrived <= part.started_s[n]
            assert part.started_s[n] >= max(arrived, part.ready_s[n])
        else:
            assert math.isnan(arrived)
        if instruction.op in COMPUTES:
            assert part.thread[n] != COMMUNICATION or hosts == "inline"
    for thread in set(part.thread):  # one thing at a time
        own = np.flatnonzero(part.thread == thread)
        order = own[np.argsort(part.started_s[own], kind="stable")]
        assert (part.stopped_s[order][:-1] <= part.started_s[order][1:]).all()


def check_messages(trace: StepTrace, plan: Plan) -> None:
    """Each message of the plan is delivered once, and arrives after it was begun to be sent."""
    found, zero = trace.timeline.flights, trace.began_s
    assert len(found) == len(plan.messages)
    assert {(f.destination, f.receive) for f in found} == {
        (m, n) for m, p in enumerate(plan.programs) for n, i in enumerate(p.instructions) if i.op is Op.RECV
    }
    for f in found:
        sender, receiver = trace.parts[f.source], trace.parts[f.destination]
        placed_s = receiver.stopped_s[f.receive] - zero
        doubt = sender.uncertainty_s + receiver.uncertainty_s
        assert sender.started_s[f.send] - zero <= f.stop_s + doubt
        assert placed_s >= max(f.stop_s, receiver.ready_s[f.receive] - zero)
        assert f.start_s == sender.stopped_s[f.send] - zero
        assert f.stop_s == receiver.arrived_s[f.receive] - zero
        sent = sender.program.instructions[f.send].target
        assert trace.timeline.operand(f) == sent
        assert sent.rows == receiver.program.instructions[f.receive].target.rows


def test_nothing_is_recorded_unless_asked_for() -> None:
    plan = small(1)
    parameters = initialise(plan.graph.parameters.values(), 1, dtype="float64")
    with Session(plan, parameters, hosts="inline") as session:
        assert session.step(batch(), trace=True).trace is not None
        assert session.step(batch()).trace is None


PROGRAM = parse_program(
    0, "0 FEED x[0:5]\n1 RECV h[0:3] <- 1\n2 FORWARD s[0:3] = h[0:3] after 0,1\n3 SEND s[0:3] -> 1 after 2"
)


def test_a_message_of_a_later_step_keeps_its_time() -> None:
    recorder = Recorder(PROGRAM, lambda machine: f"part 0.{machine}")
    recorder.on = True
    for step in range(AHEAD + 1):
        recorder.arrived("part 0.1", Tensor(step, "h", (((0, 3),),)), 10.0 + step)
    recorder.arrived("part 0.7", Tensor(0, "h", (((0, 3),),)), -1.0)  # nobody waits for it
    for step in range(AHEAD + 1):
        recorder.begin(step, 20.0 + step)
        recorder.end(21.0 + step)
        table = recorder.table()
        assert table[0, 1] == 10.0 + step
        assert (table[1, -1], table[2, -1]) == (20.0 + step, 21.0 + step)


def test_a_trace_is_moved_by_the_offset_and_knows_when_things_were_ready() -> None:
    recorder = Recorder(PROGRAM, lambda machine: f"part 0.{machine}")
    recorder.on = True
    recorder.begin(0, 1.0)
    recorder.arrived("part 0.1", Tensor(0, "h", (((0, 3),),)), 1.5)
    recorder.played(1, 1.5, 1.75)
    kernel = threading.Thread(target=lambda: [recorder.played(0, 1.0, 1.25), recorder.played(2, 2.0, 3.0)])
    kernel.start()
    kernel.join()
    recorder.played(3, 3.0, 3.5)
    recorder.end(3.5)
    part = PartTrace.of(PROGRAM, recorder.table(), Offset(100.0, 0.5))
    assert (part.began_s, part.over_s, part.uncertainty_s) == (101.0, 103.5, 0.5)
    assert part.ready_s.tolist() == [101.0, 101.0, 101.75, 103.0]
    assert part.thread.tolist() == [1, COMMUNICATION, 1, COMMUNICATION]


def test_programs_without_instructions_are_traced_too() -> None:
    empty = Program(0, ())
    recorder = Recorder(empty, str)
    recorder.begin(4, 1.0)
    recorder.end(2.0)
    part = PartTrace.of(empty, recorder.table(), Offset(0.0, 0.0))
    assert (part.began_s, part.over_s, len(part.started_s)) == (1.0, 2.0, 0)
