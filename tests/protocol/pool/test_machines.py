"""Registry, workers and clients on a network that loses, delays and doubles: drawn by Hypothesis.

Processes start and end at once or late, workers die and come, the registry is started again, runs begin and
end. Whatever happens, no incarnation of a host runs twice, no worker runs more than it has, and when the
network is whole again every run has all of its hosts. A run is refused only if the workers of the last
seconds could not take it. Planted faults show that these checks find what they are for.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from partita.engine.protocol.pool import client_events as c
from partita.engine.protocol.pool import messages as m
from partita.engine.protocol.pool import registry_events as r
from partita.engine.protocol.pool import worker_events as w
from partita.engine.protocol.pool.client import ClientMachine
from partita.engine.protocol.pool.members import Members
from partita.engine.protocol.pool.placement import Offer, place
from partita.engine.protocol.pool.registry import RegistryMachine
from partita.engine.protocol.pool.resources import Resources
from partita.engine.protocol.pool.worker import CLIENT_DEAD_S, WorkerMachine

VERSIONS = dict.fromkeys(("partita", "python", "cloudpickle", "numpy", "libzmq", "torch", "numba"), "1.2.3")
NEED_CPU = 1
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
        event = r.FromVisitor(name.encode(), role, role, message)
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
                case w.Reach(run=run):
                    self.later(0.01, lambda run=run: self.to_worker(session, w.Reached(run, "")))  # type: ignore[misc]
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
            endpoint=f"tcp://10.0.0.1:{len(session)}",
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
        self, run: str, hosts: int, *, cpu: int = NEED_CPU, workers: int = 1, named: Sequence[str] = ()
    ) -> None:
        """Begins a run; its hosts name these workers, in turn."""
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
        ask = m.Ask(run=run, key=f"key of {run}", title=run, versions=VERSIONS, needs=needs, workers=workers)
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


EVENTS = st.sampled_from(("kill worker", "add worker", "end process", "restart registry", "begin", "end run"))


@given(
    seed=st.integers(0, 2**32),
    faults=st.sampled_from((0.0, 0.1, 0.4)),
    script=st.lists(st.tuples(st.floats(0.1, 8.0), EVENTS), max_size=12),
)
@example(0, 0.4, [(0.75, "begin"), (0.25, "restart registry"), (1.0, "kill worker")])
@example(47100, 0.4, [(4.7, "add worker"), (6.4, "begin"), (6.3, "kill worker"), (4.5, "kill worker")])
def test_when_the_network_is_whole_again_every_run_has_its_hosts(
    seed: int, faults: float, script: list[tuple[float, str]]
) -> None:
    play(World(seed, faults), script)


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
    kinds = ("kill worker", "add worker", "end process", "restart registry", "begin", "end run")
    script = [
        (draw.uniform(0.1, draw.choice((0.6, 3.0, 8.0))), draw.choice(kinds))
        for _ in range(draw.randint(1, 14))
    ]
    return world, script


def unreported_workers_are_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """A registry that was started again does not wait until workers have named their runs."""
    whole = Members.reserved

    def reserved(self: Members, session: str, *, of: str = "") -> str:
        why = whole(self, session, of=of)
        return "" if why.startswith("has not reported") else why

    monkeypatch.setattr(Members, "reserved", reserved)


def held_workers_are_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts of a run that ends, or has not claimed its places yet, do not count."""
    monkeypatch.setattr(Members, "reserved", lambda self, session, *, of="": "")


def claims_are_entered_blindly(monkeypatch: pytest.MonkeyPatch) -> None:
    """A place that an earlier registry gave is entered although another run has got it since."""
    monkeypatch.setattr(Members, "_may_claim", lambda self, run, session, need: True)


@pytest.mark.parametrize(
    ("plant", "seed", "found"),
    [
        (unreported_workers_are_free, 151, "more runs at a worker than it has"),
        (held_workers_are_free, 19, "more runs at a worker than it has"),
        (claims_are_entered_blindly, 9, "machine"),
    ],
)
def test_planted_faults_are_found(
    monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None], seed: int, found: str
) -> None:
    play(*drawn(seed))
    plant(monkeypatch)
    with pytest.raises(AssertionError, match=found):
        play(*drawn(seed))


def test_an_answer_from_before_a_loss_gives_no_place_at_the_lost_worker() -> None:
    """The registry still knows a worker of a killed machine when its client has given it up."""
    world = World(0)
    world.add_worker("x", 2)
    world.add_worker("y", 2)
    world.begin("run", 2)
    world.run_for(3.0)
    [lost] = {session for session, *_ in world.processes}
    world.kill_worker(lost)
    world.run_for(4.0)
    for name in list(world.wanted["run"]):  # its coordinator misses them
        world.want("run", name, 1)
    world.run_for(3.0)
    world.assert_all_run("run")
    assert {session for session, *_ in world.processes} == {"x", "y"} - {lost}
    assert all(incarnation == 2 for incarnation in world.wanted["run"].values()), "they were lost once"


def test_a_worker_that_is_silent_for_a_while_keeps_its_hosts() -> None:
    """Its hosts run on, so it is given up later than one whose host is missed; both sides name it."""
    world = World(0)
    world.add_worker("x", 2)
    world.begin("run", 2)
    world.run_for(3.0)
    stopped = world.workers.pop("x")
    world.run_for(6.0)
    assert any("worker 'machine' is silent for" in line for line in world.log), world.log
    world.workers["x"] = stopped
    world.run_for(3.0)
    world.assert_all_run("run")
    assert all(incarnation == 0 for incarnation in world.wanted["run"].values())
    assert any("worker 'machine' answers again, after" in line for line in world.log), world.log


@pytest.mark.parametrize("seconds", [1.5, 6.0, 30.0])
def test_whoever_was_stopped_itself_gives_up_nobody(seconds: float) -> None:
    """Client and registry are on a machine that was frozen: workers did not fall silent meanwhile."""
    world = World(0)
    world.add_worker("x", 2)
    world.begin("run", 2)
    world.run_for(3.0)
    client = world.clients.pop("run")
    registry, world.registry = world.registry, _Deaf(VERSIONS, identity="frozen")
    stays = seconds < CLIENT_DEAD_S
    world.run_for(seconds)
    world.clients["run"], world.registry = client, registry
    world.run_for(0.15)
    assert world.registry.workers == ("machine",) and set(client.workers) == {"x"}
    world.run_for(5.0)
    assert (world.wanted["run"] == {"part 0.0": 0, "part 0.1": 0}) == stays, "20 s are long for a worker"
    world.assert_all_run("run")


def test_workers_and_runs_name_a_registry_that_was_started_again_and_one_that_is_away() -> None:
    world = World(0)
    world.add_worker("x", 2)
    world.begin("run", 2)
    world.run_for(3.0)
    world.restart_registry()
    world.run_for(10.0)
    again = [line for line in world.log if "the registry of the pool was started again" in line]
    assert sorted(line.split(":")[0] for line in again) == ["run", "x"], world.log
    world.registry = _Deaf(VERSIONS, identity="deaf")
    world.run_for(6.0)
    away = [line for line in world.log if "the pool does not answer since" in line]
    assert sorted(line.split(":")[0] for line in away) == ["run", "x"], world.log


def test_a_worker_outlives_a_run_and_serves_the_next() -> None:
    world = World(0)
    world.add_worker("x", 2)
    for run in ("first", "second"):
        world.begin(run, 2)
        world.run_for(3.0)
        world.assert_all_run(run)
        world.end_run(run)
        world.run_for(1.0)
        assert not world.processes and "x" in world.workers


def test_runs_wait_for_one_another() -> None:
    world = World(0)
    world.add_worker("x", 2)
    world.begin("first", 2)
    world.run_for(3.0)
    world.begin("second", 2)
    world.run_for(3.0)
    assert not world.clients["second"].is_placed and not world.failed
    world.end_run("first")
    world.run_for(3.0)
    world.assert_all_run("second")


def test_a_run_that_can_never_be_placed_is_refused_within_five_seconds() -> None:
    world = World(0)
    world.add_worker("x", 2)
    world.run_for(1.0)
    world.begin("large", 2, cpu=3)
    world.run_for(5.0)
    assert world.failed["large"] == (
        "the pool cannot place this run: part 0.1 (and 1 more) needs cpu 3; machine has cpu 2 free of cpu 2"
    )


def test_a_run_begins_at_the_workers_of_its_plan_and_goes_on_without_them() -> None:
    world = World(0)
    for session in ("x", "y", "z"):
        world.add_worker(session, 2)
        world.run_for(1.0)
    world.begin("run", 2, named=["machine-3", "machine-2"])
    world.run_for(3.0)
    world.assert_all_run("run")
    assert {name: session for session, _, name, _ in world.processes} == {"part 0.0": "z", "part 0.1": "y"}
    world.kill_worker("y")
    world.run_for(30.0)
    world.assert_all_run("run")
    expected = "part 0.1 is at worker 'machine-3': 'machine-2', of its plan, is gone or has no room"
    assert [line for line in world.log if "of its plan" in line] == [f"run: {expected}"]


def test_a_plan_for_a_worker_that_is_not_there_is_refused_within_five_seconds() -> None:
    world = World(0)
    world.add_worker("x", 2)
    world.run_for(1.0)
    world.begin("run", 1, named=["shelf"])
    world.run_for(5.0)
    assert "at worker 'shelf', for which the plan was made, and which has not joined" in world.failed["run"]


def test_a_run_waits_for_as_many_workers_as_it_says() -> None:
    world = World(0)
    world.add_worker("x", 4)
    world.begin("run", 2, workers=2)
    world.run_for(10.0)
    assert not world.clients["run"].is_placed and not world.failed
    world.add_worker("y", 4)
    world.run_for(3.0)
    world.assert_all_run("run")


def test_another_version_is_refused_by_name_on_both_sides() -> None:
    world = World(0)
    world.add_worker("x", 4, versions=VERSIONS | {"numpy": "1.0.0"})
    world.run_for(2.0)
    said = "its versions do not match the pool's: numpy is 1.0.0 and must be 1.2.3"
    [ours] = [line for line in world.log if line.startswith("worker 'machine'")]
    [theirs] = [line for line in world.log if line.startswith("x: ")]
    assert said in ours and said in theirs
    assert not world.workers, "it has ended"


def test_a_release_that_may_differ_is_reported_and_let_in() -> None:
    world = World(0)
    world.add_worker("x", 4, versions=VERSIONS | {"torch": "1.2.9+cu130"})
    world.run_for(2.0)
    assert world.registry.workers == ("machine",)
    assert any("torch 1.2.9+cu130 beside 1.2.3: last bits may differ" in line for line in world.log)


def test_a_worker_that_the_pool_cannot_reach_is_named_on_both_sides_and_let_in_when_it_can() -> None:
    world = World(0)
    world.unreachable.add("x")
    world.add_worker("x", 4)
    world.run_for(2.0)
    said = "the pool cannot reach the worker at tcp://10.0.0.1:1 (no answer)"
    assert sum(said in line for line in world.log) == 2, world.log
    assert world.registry.workers == ()
    world.unreachable.clear()
    world.run_for(10.0)
    assert world.registry.workers == ("machine",)


def test_a_drained_worker_finishes_its_run_and_ends() -> None:
    world = World(0)
    world.add_worker("x", 2)
    world.begin("run", 2)
    world.run_for(3.0)
    world.visit("operator", "client", m.Inspect(drain=()))
    world.run_for(3.0)
    world.assert_all_run("run")
    world.end_run("run")
    world.run_for(3.0)
    assert not world.workers


def test_a_worker_without_a_pool_ends_after_its_death_timeout_but_not_during_a_run() -> None:
    world = World(0)
    world.add_worker("x", 2)
    world.begin("run", 2)
    world.run_for(3.0)
    world.faults = 0.0
    world.registry = _Deaf(VERSIONS, identity="deaf")
    world.run_for(70.0)
    world.assert_all_run("run")
    world.end_run("run")
    world.run_for(1.0)
    assert not world.workers


class _Deaf(RegistryMachine):
    """A registry that answers nobody."""

    def receive(self, event: object, now: float) -> list[r.RegistryEffect]:
        return []


@pytest.mark.parametrize(
    ("role", "message"),
    [
        ("client", "Join"),
        ("worker", "Ask"),
        ("worker", "Inspect"),
    ],
)
def test_a_key_has_the_role_that_it_was_authorised_for(role: str, message: str) -> None:
    resources = Resources(cpu=1)
    messages: dict[str, m.PoolMessage] = {
        "Join": m.Join(
            session="s", endpoint="tcp://h:1", name="n", machine="", versions=VERSIONS, resources=resources
        ),
        "Ask": m.Ask(run="r", key="k", title="t", versions=VERSIONS, needs=()),
        "Inspect": m.Inspect(),
    }
    registry = RegistryMachine(VERSIONS, identity="0")
    effects = registry.receive(r.FromVisitor(b"x", "someone", role, messages[message]), 0.0)
    [answer] = [effect for effect in effects if isinstance(effect, r.Answer)]
    assert isinstance(answer.message, m.Rejection) and f"authorised as a {role}" in answer.message.reason


def test_a_stranger_cannot_start_hosts_at_a_worker() -> None:
    world = World(0)
    world.add_worker("x", 2)
    world.begin("run", 1)
    world.run_for(3.0)
    hosts = m.Hosts(
        run="run", number=99, hosts=(m.Wanted(name="part 9.9", incarnation=0, bootstrap=b"code"),)
    )
    world.to_worker("x", w.FromClient(b"other", "another key", hosts))
    world.to_worker(
        "x", w.FromClient(b"other", "key of run", m.Hosts(run="none", number=99, hosts=hosts.hosts))
    )
    world.assert_all_run("run")
    assert "bootstrap" not in repr(hosts) and "code" not in repr(hosts)


def test_a_revoked_worker_is_out() -> None:
    world = World(0)
    world.add_worker("x", 2)
    world.run_for(2.0)
    assert world.registry.workers == ("machine",)
    world.to_registry(r.Revoked(frozenset({"client"})))
    assert world.registry.workers == ()


@given(st.binary(max_size=300))
def test_any_bytes_are_a_message_or_refused(data: bytes) -> None:
    try:
        message = m.decode(data)
    except m.MalformedMessage:
        return
    assert m.decode(m.encode(message)) == message
