"""State machines do not grow with the run: requests, pushes, fetches, checkpoints, reports."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from itertools import count
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType

import pytest

from partita.engine import Downpour, Outcome
from partita.engine.protocol import ApplyOnArrival, ParameterLinks, Part, Shard, ShardRanges
from partita.engine.protocol.apply_on_arrival import MOST_STALE
from partita.engine.protocol.commands import Steps, dot
from partita.engine.protocol.coordinator_effects import Timeouts
from partita.engine.protocol.evaluation_mode import MOST_REPEATED
from partita.engine.protocol.events import Persisted, Received, Tick
from partita.engine.protocol.host import PeersChanged
from partita.engine.protocol.leased_work import LeasedWork
from partita.engine.protocol.messages import Begin, Fetch, Heartbeat, Lease, Parameters, Push, PushAck, Save
from partita.engine.protocol.program_effects import StepDone
from tests.protocol.coordinating import PARTS, SHARDS, Run
from tests.protocol.directing import staged

_CODE = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType)


def reachable(machine: object) -> int:
    """Counts the objects that a machine holds, at any depth."""
    found, waiting = {id(machine)}, [machine]
    while waiting:
        for one in gc.get_referents(waiting.pop()):
            if id(one) not in found and not isinstance(one, _CODE):
                found.add(id(one))
                waiting.append(one)
    return len(found)


def coordinator() -> Iterator[object]:
    run = Run(units=1 << 40).start()
    step = 0
    while True:
        for _ in range(500):
            step += 1
            for part in PARTS:
                run.report(part, step)
        for shard in (*SHARDS, *SHARDS):
            run.wait(5.0)
            run.saved(shard, run.machine.checkpoints._next - 1)
        yield run.machine


def shard() -> Iterator[object]:
    own = ShardRanges("shard 0", 0, {0: (0, 1)})
    machine, now = Shard(own, ApplyOnArrival(own)), 0.0
    sequence = 0
    while True:
        machine.receive(Received("coordinator", 0, Heartbeat(0, clock=now)), now)
        for _ in range(MOST_STALE):
            for part in ("part 0.0", "part 1.0"):
                machine.receive(Received(part, 0, Fetch(sequence, sequence)), now)
                machine.receive(Received(part, 0, Push(0, sequence, 0, 0), bytes(4)), now)
            sequence += 1
        machine.receive(Received("coordinator", 0, Save(sequence)), now)
        machine.receive(Persisted(sequence, machine.version, "file", "hash"), now)
        now += 1.0
        yield machine


def part() -> Iterator[object]:
    links = ParameterLinks(incarnation=0, shards=(("shard 0", 0, 1),))
    machine = Part(Downpour().replica, LeasedWork(links))
    for event in (
        PeersChanged(1, {}),
        Received("coordinator", 0, Begin(0, 1 << 40, (Lease(0, 0, 1 << 40),))),
    ):
        machine.receive(event, 0.0)
    step = 0
    while True:
        for _ in range(1000):
            answer = Parameters(step, 0, step, updates=step, pushes=step)
            machine.receive(Received("shard 0", 0, answer, bytes(4)), 0.0)
            machine.receive(StepDone(step), 0.0)
            machine.receive(Received("shard 0", 0, PushAck(0, 0, step, step, 0)), 0.0)
            machine.receive(Tick(), 0.0)
            step += 1
        assert machine.work.step == step
        yield machine


def batch_method() -> Iterator[object]:
    """A checkpoint lies between two looks, although none is due by the clock."""

    def many() -> Steps:
        while True:
            yield (dot("x", "x"),)
        return Outcome("stopped", "never")

    stage = staged(begin=many, timeouts=Timeouts(checkpoint_every_s=None))
    for looked in count(1):
        wanted = MOST_REPEATED // 2 + looked * MOST_REPEATED
        stage.play(until=lambda wanted=wanted: stage.coordinator.plan.answered >= wanted)  # type: ignore[misc]
        stage.effects.clear()
        stage.files.clear()
        yield stage.coordinator


@pytest.mark.parametrize("looks", [coordinator, shard, part, batch_method])
def test_a_machine_does_not_grow(looks: Callable[[], Iterator[object]]) -> None:
    look = looks()
    next(look)
    before = [reachable(next(look)) for _ in range(2)]
    after = [reachable(next(look)) for _ in range(2)]
    assert max(after) <= 1.02 * max(before) + 20, (before, after)
