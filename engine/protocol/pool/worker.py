"""A worker of a pool: joins it, starts the hosts that clients want, reports their ends, and outlives runs.

A run's hosts end when its client says so or is silent for long, not when the registry is gone: that can be
started again meanwhile. Without a registry and without runs the worker ends after `death_timeout_s`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from partita.engine.protocol.pool import messages as m
from partita.engine.protocol.pool.pauses import OwnPauses
from partita.engine.protocol.pool.registry_events import Log, PoolTick
from partita.engine.protocol.pool.worker_events import (
    EndHost,
    EndWorker,
    FromClient,
    FromRegistry,
    HostBegan,
    HostEnded,
    Reach,
    Reached,
    SendToClient,
    SendToRegistry,
    StartHost,
    Unreached,
    WorkerEffect,
)

JOIN_S: Final = 0.5
"""Seconds between two messages to the registry."""

CLIENT_DEAD_S: Final = 20.0
"""Seconds of silence after which the hosts of a client are ended."""

SILENT_S: Final = 3.0
"""Seconds without an answer of the registry after which the worker reports it."""

_FOR_GOOD: Final = 1 << 62
_MOST_OVER: Final = 256
_MOST_FORMER: Final = 16


@dataclass(slots=True, eq=False)
class _Run:
    """A run that has hosts here, or may have. `asked_reach`: whether it reaches them is being found out, or
    known to be so.
    """

    client: m.Client
    received_at: float
    route: bytes = b""
    asked_reach: bool = False
    reached: bool = False
    trouble: str = ""
    hosts: dict[str, m.HostState] = field(default_factory=dict)
    wanted: tuple[m.Wanted, ...] = ()  # by the client's newest message
    number: int = -1  # of the client's newest message; -1: none came

    @property
    def is_used(self) -> bool:
        """Returns whether a message of the client came."""
        return self.number >= 0


class WorkerMachine:
    """One worker.

    Attributes:
        name: its name in the pool.
        runs: the runs that may start hosts here, by id.
        is_in: whether it takes part in the pool, as far as it knows.
    """

    def __init__(self, join: m.Join, *, death_timeout_s: float) -> None:
        """Creates a worker that has not joined.

        Args:
            join: what it says of itself; the runs in it are replaced.
            death_timeout_s: seconds without an answer of the registry after which it ends.
        """
        self.name = join.name
        self.runs: dict[str, _Run] = {}
        self._join: Final = join
        self._death_timeout_s: Final = death_timeout_s
        self._joined_at = self._answered_at = float("-inf")
        self._began_at: float | None = None
        self.is_in = False
        self._draining = False
        self._rejection = ""
        self._trouble = ""
        self._ended = False
        self._number = self._joins = 0
        self._registry, self._orders = "", 0  # identity and number of the newest orders
        self._former: list[str] = []  # identities of registries before it
        self._misses_pool = False
        self._pauses: Final = OwnPauses()
        self._over: dict[str, int] = {}  # runs that are over, with the number of their last message

    @property
    def keys(self) -> frozenset[str]:
        """The keys of clients that may ask at this worker's door."""
        return frozenset(run.client.key for run in self.runs.values())

    def receive(self, event: object, now: float) -> Sequence[WorkerEffect]:
        """Returns the effects of an event at `now` (seconds, monotonic)."""
        if self._ended:
            return []
        match event:
            case PoolTick():
                return self._tick(now)
            case FromRegistry(message=message):
                return self._answered(message, now)
            case FromClient(message=m.Hosts() as asked):
                return self._asked(event, asked, now)
            case FromClient():
                return []
            case Reached(run=name, trouble=trouble):
                return self._reached(name, trouble)
            case Unreached(reason=reason):
                return self._unreached(reason)
            case HostBegan():
                return self._changed(event.run, event.name, event.incarnation, pid=event.pid)
            case HostEnded():
                return self._changed(event.run, event.name, event.incarnation, ended=event.reason)
            case _:
                raise AssertionError(event)

    def _unreached(self, reason: str) -> list[WorkerEffect]:
        """Shows why there is no connection to the registry, when the reason changes."""
        self.is_in = False
        if reason == self._trouble:
            return []
        self._trouble = reason
        return [Log(reason)]

    # The registry.

    def _tick(self, now: float) -> list[WorkerEffect]:
        effects: list[WorkerEffect] = []
        if self._began_at is None:
            self._began_at = self._answered_at = now
        pause_s = self._pauses.before(now)
        self._answered_at = min(self._answered_at + pause_s, now)
        for run in self.runs.values():
            run.received_at = min(run.received_at + pause_s, now)
        for name, run in list(self.runs.items()):
            if now - run.received_at >= CLIENT_DEAD_S:
                effects += self._end_run(name, f"its client was silent for {now - run.received_at:.0f} s")
        if self._draining and not self.runs:
            return [*effects, *self._end(f"worker '{self.name}' was drained and ends")]
        silent_s = now - self._answered_at
        if silent_s >= SILENT_S and self.is_in and not self._misses_pool:
            self._misses_pool = True
            effects.append(Log(f"the pool does not answer since {silent_s:.0f} s; runs go on"))
        if silent_s >= self._death_timeout_s and not self.runs:
            why = self._trouble or self._rejection or "the pool does not answer"
            return [*effects, *self._end(f"{why}; gave up after {silent_s:.0f} s", failed=True)]
        if now - self._joined_at >= JOIN_S:
            self._joined_at = now
            effects.append(SendToRegistry(self._state()))
        return effects

    def _state(self) -> m.Join:
        join = self._join
        self._joins += 1
        return m.Join(
            session=join.session,
            endpoint=join.endpoint,
            name=join.name,
            machine=join.machine,
            versions=join.versions,
            resources=join.resources,
            runs=tuple(self.runs),
            owners=tuple(run.client.owner for run in self.runs.values()),
            draining=self._draining,
            number=self._joins,
            registry=self._registry,
            orders=self._orders,
        )

    def _answered(self, message: m.PoolMessage, now: float) -> list[WorkerEffect]:
        match message:
            case m.Orders():
                return self._ordered(message, now)
            case m.Rejection(reason=reason, final=final):
                effects: list[WorkerEffect] = []
                if reason != self._rejection:
                    effects.append(Log(f"the pool refuses this worker: {reason}"))
                self._rejection, self.is_in = reason, False
                if final and not self.runs:
                    return [*effects, *self._end(f"the pool refuses this worker: {reason}", failed=True)]
                return effects
            case _:
                return []

    def _ordered(self, orders: m.Orders, now: float) -> list[WorkerEffect]:
        if orders.registry in self._former:
            return []
        if orders.registry == self._registry and orders.number < self._orders:
            return []
        effects: list[WorkerEffect] = []
        is_new, before = orders.registry != self._registry, set(self.runs)
        if is_new and self._registry:
            self._former = [*self._former, self._registry][-_MOST_FORMER:]
            effects.append(Log(f"the registry of the pool was started again; it knows '{orders.name}'"))
        elif not self.is_in:
            effects.append(Log(f"joined the pool as '{orders.name}'; waits for runs"))
        elif self._misses_pool:
            effects.append(Log(f"the pool answers again, after {now - self._answered_at:.1f} s"))
        self._registry, self._orders = orders.registry, orders.number
        self.name, self.is_in, self._answered_at = orders.name, True, now
        self._trouble, self._rejection, self._misses_pool = "", "", False
        self._draining = orders.draining
        listed = {client.run for client in orders.clients}
        for client in orders.clients:
            effects += self._end_earlier(client)
            if client.run not in self.runs and self._over.get(client.run) != _FOR_GOOD:
                self.runs[client.run] = _Run(client, now)
                effects.append(Log(f"hosts for a run of {client.title}"))
        for name, run in list(self.runs.items()):
            if name not in listed and not run.is_used:
                del self.runs[name]
        return [*effects, *self._report_runs()] if is_new or set(self.runs) != before else effects

    def _end_earlier(self, client: m.Client) -> list[WorkerEffect]:
        """Ends the hosts of dead processes of a client's run."""
        earlier = [self.runs[name].client for name in client.earlier if name in self.runs]
        over = [one.run for one in earlier if one.owner == client.owner and one.run != client.run]
        why = "a new process goes on with it"
        return [effect for name in over for effect in self._end_run(name, why, for_good=True)]

    def _report_runs(self) -> list[WorkerEffect]:
        """Reports at once which runs are here: until then the registry gives nothing here away."""
        return [SendToRegistry(self._state())]

    # Clients.

    def _asked(self, event: FromClient, asked: m.Hosts, now: float) -> list[WorkerEffect]:
        run = self.runs.get(asked.run)
        if asked.run in self._over and self._over[asked.run] == _FOR_GOOD:
            return [SendToClient(event.route, m.HostStates(run=asked.run, number=self._next()))]
        if run is None or run.client.key != event.key or asked.number < max(run.number, 0):
            return []
        if asked.number <= self._over.get(asked.run, -1):
            return []
        run.route, run.received_at, run.number = event.route, now, asked.number
        if asked.ends:
            states = m.HostStates(run=asked.run, number=self._next())
            ended = self._end_run(asked.run, "it has ended", for_good=True)
            return [*ended, SendToClient(event.route, states)]
        effects: list[WorkerEffect] = []
        if not run.asked_reach:
            run.asked_reach = True
            effects.append(Reach(asked.run, asked.reach, asked.files))
        wanted = {one.name: one for one in asked.hosts}
        for name, host in list(run.hosts.items()):
            if name not in wanted or wanted[name].incarnation != host.incarnation:
                del run.hosts[name]
                if not host.ended:
                    effects.append(EndHost(asked.run, name, host.incarnation))
        run.wanted = asked.hosts
        return [*effects, *self._start_wanted(run), *self._report(asked.run)]

    @staticmethod
    def _start_wanted(run: _Run) -> list[WorkerEffect]:
        """Starts what a client wants, once it can be reached."""
        new = [one for one in run.wanted if run.reached and one.name not in run.hosts and one.bootstrap]
        run.hosts |= {one.name: m.HostState(name=one.name, incarnation=one.incarnation) for one in new}
        return [StartHost(run.client.run, one.name, one.incarnation, one.bootstrap) for one in new]

    def _reached(self, name: str, trouble: str) -> list[WorkerEffect]:
        run = self.runs.get(name)
        if run is None:
            return []
        is_new, run.reached, run.trouble = trouble != run.trouble, not trouble, trouble
        run.asked_reach = run.reached  # else it is tried again: another worker may have died meanwhile
        said = [Log(f"no host of {run.client.title} is started: {trouble}")] if trouble and is_new else []
        return [*said, *self._start_wanted(run), *self._report(name)]

    def _changed(
        self, run_id: str, name: str, incarnation: int, *, pid: int = 0, ended: str = ""
    ) -> list[WorkerEffect]:
        run = self.runs.get(run_id)
        host = None if run is None else run.hosts.get(name)
        if run is None or host is None or host.incarnation != incarnation or host.ended:
            return []
        run.hosts[name] = m.HostState(name=name, incarnation=incarnation, pid=pid or host.pid, ended=ended)
        return self._report(run_id)

    def _report(self, name: str) -> list[WorkerEffect]:
        run = self.runs.get(name)
        if run is None or not run.route:
            return []
        hosts = tuple(run.hosts.values())
        states = m.HostStates(run=name, number=self._next(), hosts=hosts, trouble=run.trouble)
        return [SendToClient(run.route, states)]

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _end_run(self, name: str, why: str, *, for_good: bool = False) -> list[WorkerEffect]:
        """Ends the hosts of a run. Its late messages have no effect, and after `for_good` no message has."""
        run = self.runs.pop(name)
        self._over[name] = _FOR_GOOD if for_good else run.number
        while len(self._over) > _MOST_OVER:
            del self._over[next(iter(self._over))]
        effects: list[WorkerEffect] = [
            EndHost(name, host.name, host.incarnation) for host in run.hosts.values() if not host.ended
        ]
        effects += self._report_runs()
        used = run.is_used
        return [*effects, Log(f"the run of {run.client.title} is over: {why}")] if used else effects

    def stop(self) -> Sequence[WorkerEffect]:
        """Ends the worker and all of its hosts, at the wish of its user."""
        effects = [effect for name in list(self.runs) for effect in self._end_run(name, "this worker ends")]
        return [*effects, SendToRegistry(m.Leave(session=self._join.session)), *self._end("stopped")]

    def _end(self, reason: str, *, failed: bool = False) -> list[WorkerEffect]:
        self._ended = True
        left = [] if failed else [SendToRegistry(m.Leave(session=self._join.session))]
        return [*left, EndWorker(reason, failed)]

    def validate(self) -> None:
        """Checks the invariants. Raises AssertionError."""
        for run in self.runs.values():
            assert run.reached or not run.hosts, run.client
            assert not run.hosts or run.is_used, run.client
