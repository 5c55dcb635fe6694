"""State machines do not grow with the run: requests, pushes, fetches, checkpoints, reports, deaths; nor those
of a pool with its runs.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType

import pytest

from partita.engine import Downpour, Outcome
from partita.engine.protocol import ApplyOnArrival, ParameterLinks, Part, Shard, ShardRanges
from partita.engine.protocol import file_client as fc
from partita.engine.protocol.checkpoint_messages import Save
from partita.engine.protocol.commands import Steps, dot
from partita.engine.protocol.coordinator_effects import Timeouts
from partita.engine.protocol.evaluation_mode import MOST_REPEATED
from partita.engine.protocol.events import Died, Persisted, Received, Tick
from partita.engine.protocol.host import PeersChanged
from partita.engine.protocol.joined_book import JoinedBook
from partita.engine.protocol.leased_work import LeasedWork
from partita.engine.protocol.messages import Begin, Fetch, Heartbeat, Lease, Parameters, Push, PushAck
from partita.engine.protocol.pool import messages as m
from partita.engine.protocol.program_effects import StepDone
from partita.engine.protocol.views import JoinedBatches
from tests.files import test_transfers
from tests.protocol.coordinating import PARTS, SHARDS, Run
from tests.protocol.directing import staged
from tests.protocol.durability import replicas
from tests.protocol.pool.world import World

STALE = 32
"""Versions that a shard remembers here, so that it soon does."""

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
        for _ in range(150):
            step += 1
            for part in PARTS:
                run.report(part, step)
        for shard in (*SHARDS, *SHARDS):
            run.wait(5.0)
            run.saved(shard, run.machine.checkpoints.next - 1)
        yield run.machine


def shard() -> Iterator[object]:
    own = ShardRanges("shard 0", 0, {0: (0, 1)})
    machine, now = Shard(own, ApplyOnArrival(own)), 0.0
    sequence = 0
    while True:
        machine.receive(Received("coordinator", 0, Heartbeat(0, clock=now)), now)
        for _ in range(STALE):
            for part in ("part 0.0", "part 1.0"):
                machine.receive(Received(part, 0, Fetch(sequence, sequence)), now)
                machine.receive(Received(part, 0, Push(0, sequence, 0, 0), bytes(4)), now)
            sequence += 1
        machine.receive(Received("coordinator", 0, Save(sequence)), now)
        machine.receive(Persisted(sequence, machine.version, "file", "hash"), now)
        now += 1.0
        yield machine


def part() -> Iterator[object]:
    links = ParameterLinks(incarnation=0, streams=(("shard 0", 0, 1),))
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


def coordinator_of_the_dying() -> Iterator[object]:
    """Parts, shards and whole machines die, and the others go on."""
    run, step = Run(units=1 << 40).start(), 0
    while True:
        for deaths in (("part 0.0",), ("shard 0",), ("part 1.1", "shard 1", "part 0.1")) * 3:
            for name in deaths:
                run.feed(Died(name, run.incarnations[name], "its process was ended by SIGKILL"))
            run.restarted(*run.machine.registry.starting, continues=step)
            step += 1
            for part in PARTS:
                run.report(part, step)
            run.wait(1.0)
            for shard in SHARDS:
                run.saved(shard, run.machine.checkpoints.next - 1)
        yield run.machine


def views_of_the_dying() -> Iterator[object]:
    """Each death has two views: without the dead replica, and with it again."""
    book, step = JoinedBook(JoinedBatches(1000, 8), 0), 0
    while True:
        for _ in range(50):
            for members in (1, 2):
                book.extend(1 << 20)
                book.renew(step, members)
                step += 5
            book.forget(step - 40)
        yield book


def copies(*, of: str) -> Iterator[object]:
    """A shard whose backups die, or a backup that follows."""
    world = replicas.World()
    while True:
        for _ in range(3):
            for _ in range(12):
                for name in replicas.PARTS:
                    world.push(name)
                world.settle()
            if of == replicas.SHARD:
                world.kill(replicas.BACKUP)
            world.settle()
        yield world.processes[of].machine


def transfers(*, of: str) -> Iterator[object]:
    """A host reads and writes files; for the server it dies now and then."""
    world = test_transfers.World()
    while True:
        for n in range(10):
            for k in range(10):
                world.write(f"checkpoint/{n}/{k}", bytes(100))
                world.client_got(fc.WantBytes("data/x", 16 * k, 16 * k + 16, ahead=False))
                world.settle()
            world.read.clear()
            if of == "server":
                world.begin()
        yield world.server if of == "server" else world.client


def pool(*, of: str) -> Iterator[object]:
    """Runs begin, go on in other processes, are refused and end; workers die and come."""
    world, names = World(1), (f"x{n}" for n in count())
    world.add_worker("y", 8)
    for n in count():
        run, dying = f"run {n}", next(names)
        world.add_worker(dying, 4)
        world.begin(run, 2)
        world.begin(f"other {n}", 2)
        for old in (f"old {n}.{k}" for k in range(16)):
            world.visit(old, "client", m.Ask(run=old, key="", title="", versions={}, needs=()))
        world.run_for(3.0)
        world.kill_worker(dying)
        world.go_on(run, f"{run} again")
        world.run_for(12.0)
        world.end_run(f"{run} again")
        world.end_run(f"other {n}")
        world.run_for(2.0)
        assert not world.processes and len(world.workers) == 1
        if n % 6 == 5:
            yield world.registry if of == "registry" else world.workers["y"]


@pytest.mark.parametrize("of", ["registry", "worker"])
def test_a_pool_does_not_grow_with_its_runs(of: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("partita.engine.protocol.pool.registry._MOST_GONE", 8)
    monkeypatch.setattr("partita.engine.protocol.pool.worker._MOST_OVER", 8)
    look = pool(of=of)
    next(look)
    before, after = reachable(next(look)), reachable(next(look))
    assert after <= 1.02 * before + 20, (before, after)


@pytest.mark.parametrize(
    "looks",
    [
        *(coordinator, shard, part, batch_method, coordinator_of_the_dying, views_of_the_dying),
        *(partial(copies, of=name) for name in (replicas.SHARD, replicas.BACKUP)),
        *(partial(transfers, of=name) for name in ("server", "client")),
    ],
)
def test_a_machine_does_not_grow(
    looks: Callable[[], Iterator[object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("partita.engine.protocol.apply_on_arrival.MOST_STALE", STALE)
    look = looks()
    next(look)
    before = [reachable(next(look)) for _ in range(2)]
    after = [reachable(next(look)) for _ in range(2)]
    assert max(after) <= 1.02 * max(before) + 20, (before, after)
