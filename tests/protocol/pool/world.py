"""Registry, workers and clients of a pool on one virtual clock, and a network with faults between them."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from partita.engine.protocol.pool import client_events as c
from partita.engine.protocol.pool import messages as m
from partita.engine.protocol.pool import registry_events as r
from partita.engine.protocol.pool import worker_events as w
from partita.engine.protocol.pool.client import ClientMachine
from partita.engine.protocol.pool.placement import Offer, place
from partita.engine.protocol.pool.registry import RegistryMachine
from partita.engine.protocol.pool.resources import Resources
from partita.engine.protocol.pool.worker import WorkerMachine

VERSIONS = dict.fromkeys(("partita", "python", "cloudpickle", "numpy", "libzmq", "torch", "numba"), "1.2.3")
NEED_CPU = 1
KINDS = ("kill worker", "add worker", "end process", "restart registry", "begin", "end run", "go on")
KNOWN_S = 5.0


@dataclass
class World:
    """Machines on one virtual clock. `faults` is the chance that a message is lost, doubled or late."""

    seed: int
    faults: float = 0.0
    now: float = 0.0
    registry: RegistryMachine = field(default_factory=lambda: RegistryMachine(VERSIONS, identity="0"))
    workers: dict[str, WorkerMachine] = field(default_factory=dict)
    clients: dict[str, ClientMachine] = field(default_factory=dict)
    processes: dict[tuple[str, str, str, int], str] = field(default_factory=dict)  # and the worker
    started: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    log: list[str] = field(default_factory=list)
    wanted: dict[str, dict[str, int]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    registries: int = 0
    needs: dict[str, tuple[m.Need, ...]] = field(default_factory=dict)
    alive_since: dict[str, float] = field(default_factory=dict)
    capacity: dict[str, int] = field(default_factory=dict)
    wrongly_refused: list[str] = field(default_factory=list)
    unreachable: set[str] = field(default_factory=set)
    begun: dict[str, set[tuple[str, int]]] = field(default_factory=dict)
    earlier: dict[str, tuple[str, ...]] = field(default_factory=dict)
    owners: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()

    # The network.

    def later(self, delay_s: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (self.now + delay_s, next(self._count), what))

    def send(self, message: m.PoolMessage, deliver: Callable[[m.PoolMessage], None]) -> None:
        """One direction of one connection; every message goes through the codec."""
        data = m.encode(message)
        copies = 1
        if self.random.random() < self.faults:
            copies = self.random.choice((0, 0, 2))
        for _ in range(copies):
            delay = self.random.uniform(0.0, 1.5) if self.random.random() < self.faults else 0.001
            self.later(delay, lambda: deliver(m.decode(data)))

    def run_for(self, seconds: float) -> None:
        until = self.now + seconds
        while True:
            tick = self.now + 0.1
            while self._queue and self._queue[0][0] <= min(tick, until):
                at, _, what = heapq.heappop(self._queue)
                self.now = max(self.now, at)
                what()
                self.check()
            self.now = min(tick, until)
            if self.now >= until:
                return
            self.to_registry(r.PoolTick())
            for session in list(self.workers):
                self.to_worker(session, r.PoolTick())
            for run in list(self.clients):
                self.to_client(run, r.PoolTick())

    # The machines and their bodies.

    def to_registry(self, event: object) -> None:
        for effect in self.registry.receive(event, self.now):
            match effect:
                case r.Answer(route=route, message=message):
                    name = route.decode()
                    self.send(message, lambda got, name=name: self.answered(name, got))  # type: ignore[misc]
                case r.Probe(session=session):
                    trouble = "no answer" if session in self.unreachable else ""
                    self.later(0.01, lambda s=session, t=trouble: self.to_registry(r.Probed(s, t)))  # type: ignore[misc]
                case r.Log(text=text):
                    self.log.append(text)

    def answered(self, name: str, message: m.PoolMessage) -> None:
        if name in self.workers:
            self.to_worker(name, w.FromRegistry(message))
        else:
            self.to_client(name, c.FromPool(message))

    def visit(self, name: str, role: str, message: m.PoolMessage) -> None:
        event = r.FromVisitor(name.encode(), self.owners.get(name, role), role, message)
        self.send(message, lambda _: self.to_registry(event))

    def to_worker(self, session: str, event: object) -> None:
        if session in self.workers:
            self.carry_out_of_worker(session, self.workers[session].receive(event, self.now))

    def carry_out_of_worker(self, session: str, effects: Any) -> None:
        for effect in effects:
            match effect:
                case w.SendToRegistry(message=message):
                    self.visit(session, "worker", message)
                case w.SendToClient(route=route, message=message):
                    run = route.decode()
                    self.send(message, lambda got, run=run: self.to_client(run, c.FromWorker(session, got)))  # type: ignore[misc]
                case w.Reach(run=run, endpoints=endpoints):
                    self.later(0.01, lambda run=run, to=endpoints: self.tried(session, run, to))  # type: ignore[misc]
                case w.StartHost(run=run, name=name, incarnation=inc):
                    self.started[run, name, inc] += 1
                    self.processes[session, run, name, inc] = session
                    began = w.HostBegan(run, name, inc, 17)
                    self.later(self.random.uniform(0, 1), lambda e=began: self.to_worker(session, e))  # type: ignore[misc]
                case w.EndHost(run=run, name=name, incarnation=inc):
                    self.processes.pop((session, run, name, inc), None)
                case w.EndWorker():
                    del self.workers[session]
                    assert not [one for one in self.processes if one[0] == session]
                case r.Log(text=text):
                    self.log.append(f"{session}: {text}")

    def tried(self, session: str, run: str, endpoints: Sequence[tuple[str, str]]) -> None:
        """A worker has tried to reach others, of which dead ones do not answer."""
        there = {self.endpoint(one) for one in self.workers}
        dead = [name for name, endpoint in endpoints if endpoint not in there]
        trouble = f"{dead[0]} cannot be reached" if dead else ""
        self.to_worker(session, w.Reached(run, trouble))

    @staticmethod
    def endpoint(session: str) -> str:
        """The endpoint of a worker."""
        return f"tcp://10.0.{ord(session[0])}.1:{7000 + int(session[1:] or 0)}"

    def to_client(self, run: str, event: object) -> None:
        if run in self.clients:
            self.carry_out_of_client(run, self.clients[run].receive(event, self.now))

    def carry_out_of_client(self, run: str, effects: Any) -> None:
        for effect in effects:
            match effect:
                case c.SendToPool(message=message):
                    self.visit(run, "client", message)
                case c.SendToWorker(session=session, message=message):
                    event = w.FromClient(run.encode(), f"key of {run}", message)
                    self.send(message, lambda _, s=session, e=event: self.to_worker(s, e))  # type: ignore[misc]
                case c.Began(name=name, incarnation=inc):
                    self.begun[run].add((name, inc))
                case c.Ended(name=name, incarnation=inc):  # the run's coordinator starts it again
                    if self.wanted[run].get(name) == inc:
                        self.want(run, name, inc + 1)
                case r.Log(text=text):
                    self.log.append(f"{run}: {text}")
                case c.CannotRun(reason=reason):
                    if run not in self.failed:
                        self.failed[run] = reason
                        self.look_at_refusal(run, reason)
                case r.Log(text=text):
                    self.log.append(f"{run}: {text}")

    def look_at_refusal(self, run: str, reason: str) -> None:
        """A run may be refused only if the workers that have been there for a while cannot take it."""
        known = [s for s in self.workers if self.now - self.alive_since[s] >= KNOWN_S]
        totals = {session: Resources(cpu=self.capacity[session]) for session in known}
        offers = [Offer(s, s, s[0], total, total) for s, total in totals.items()]
        if not place(self.needs[run], {}, offers).missing:
            self.wrongly_refused.append(f"{run}: {reason}")

    # What happens.

    def add_worker(self, session: str, cpu: int, *, versions: dict[str, str] = VERSIONS) -> None:
        join = m.Join(
            session=session,
            endpoint=self.endpoint(session),
            name="machine",
            machine=session[0],
            versions=versions,
            resources=Resources(cpu=cpu),
        )
        self.workers[session] = WorkerMachine(join, death_timeout_s=60.0)
        self.alive_since[session], self.capacity[session] = self.now, cpu

    def kill_worker(self, session: str) -> None:
        if self.workers.pop(session, None) is not None:
            self.processes = {place: s for place, s in self.processes.items() if s != session}

    def end_process(self, place: tuple[str, str, str, int]) -> None:
        session, run, name, inc = place
        self.processes.pop(place)
        self.to_worker(session, w.HostEnded(run, name, inc, "its process was ended by SIGKILL"))

    def restart_registry(self) -> None:
        self.registries += 1
        self.registry = RegistryMachine(VERSIONS, identity=str(self.registries))

    def begin(
        self,
        run: str,
        hosts: int,
        *,
        cpu: int = NEED_CPU,
        workers: int = 1,
        named: Sequence[str] = (),
        earlier: tuple[str, ...] = (),
    ) -> None:
        """Begins a run; its hosts name these workers, in turn. `earlier`: its processes that were killed."""
        needs = tuple(
            m.Need(
                host=f"part 0.{n}",
                resources=Resources(cpu=cpu),
                group="replica 0",
                workers=tuple(named[n : n + 1]),
                strict=n < len(named),
            )
            for n in range(hosts)
        )
        ask = m.Ask(
            run=run,
            key=f"key of {run}",
            title=run,
            versions=VERSIONS,
            needs=needs,
            workers=workers,
            earlier=earlier,
        )
        self.clients[run] = ClientMachine(ask, reach=(), wait_s=3600.0)
        self.wanted[run], self.begun[run], self.needs[run] = {}, set(), needs
        for need in needs:
            self.want(run, need.host, 0)

    def want(self, run: str, name: str, incarnation: int) -> None:
        self.wanted[run][name] = incarnation
        self.carry_out_of_client(run, self.clients[run].want(name, incarnation, b"bootstrap"))

    def end_run(self, run: str) -> None:
        if run in self.clients:
            machine = self.clients.pop(run)
            self.carry_out_of_client(run, machine.close())

    def go_on(self, before: str, run: str, *, hosts: int | None = None) -> None:
        """Kills the process of a run; another one goes on with it."""
        del self.clients[before]
        earlier = (*self.earlier.get(before, ()), before)
        self.earlier[run] = earlier
        self.begin(run, hosts or len(self.needs[before]), earlier=earlier)

    # What must be true.

    def check(self) -> None:
        self.registry.validate()
        for machine in (*self.workers.values(), *self.clients.values()):
            machine.validate()
        assert max(self.started.values(), default=0) <= 1, "an incarnation was started twice"
        used: Counter[str] = Counter()
        for session, run, name, _ in self.processes:
            used[session] += next(n.resources.cpu for n in self.needs[run] if n.host == name)
        over = {session: cpu for session, cpu in used.items() if cpu > self.capacity[session]}
        assert not over, f"more runs at a worker than it has: {over}"

    def assert_all_run(self, run: str) -> None:
        """Every host of the run has one process, of the newest incarnation, and the client knows it."""
        found = {(name, inc) for _, one, name, inc in self.processes if one == run}
        assert found == set(self.wanted[run].items()) <= self.begun[run]


def play(world: World, script: list[tuple[float, str]]) -> None:
    """Plays what happens, makes the network whole, and demands that every run has its hosts."""
    names = (f"{letter}{n}" for n in range(100) for letter in "xy")
    runs = (f"run {n}" for n in range(100))
    world.add_worker(next(names), 4)
    world.begin(next(runs), 3)
    for wait_s, what in script:
        world.run_for(wait_s)
        alive = sorted(world.workers)
        match what:
            case "kill worker" if alive:
                world.kill_worker(world.random.choice(alive))
            case "add worker":
                world.add_worker(next(names), world.random.randint(1, 4))
            case "end process" if world.processes:
                world.end_process(world.random.choice(sorted(world.processes)))
            case "restart registry":
                world.restart_registry()
            case "begin" if len(world.clients) < 3:
                world.begin(next(runs), world.random.randint(1, 3))
            case "go on" if world.clients:
                before = world.random.choice(sorted(world.clients))
                world.go_on(before, next(runs), hosts=world.random.choice((None, None, 2)))
            case "end run" if world.clients:
                world.end_run(world.random.choice(sorted(world.clients)))
    refused = dict(world.failed)
    assert all(reason.startswith("the pool cannot place this run") for reason in refused.values()), refused
    for run in refused:
        world.end_run(run)
    world.faults = 0.0
    for _ in range(3):
        world.add_worker(next(names), 4)  # there is room for all
    world.run_for(60.0)
    assert world.failed == refused, world.failed
    assert not world.wrongly_refused, world.wrongly_refused
    for run in world.clients:
        world.assert_all_run(run)
    ended = {run for _, run, _, _ in world.processes} - world.clients.keys()
    assert not ended, f"hosts of ended runs live: {ended}"


def drawn(seed: int) -> tuple[World, list[tuple[float, str]]]:
    """A world and what happens in it, by a seed."""
    draw = Random(seed)
    world = World(seed, draw.choice((0.0, 0.1, 0.4, 0.6)))
    draw = Random(seed)
    script = [
        (draw.uniform(0.1, draw.choice((0.6, 3.0, 8.0))), draw.choice(KINDS))
        for _ in range(draw.randint(1, 14))
    ]
    return world, script


class Deaf(RegistryMachine):
    """A registry that answers nobody."""

    def receive(self, event: object, now: float) -> list[r.RegistryEffect]:
        return []
