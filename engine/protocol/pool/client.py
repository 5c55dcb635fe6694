"""The client of a pool: one run, its hosts' places, and what their workers report of them.

A host is wanted from `want` on until `end`; where its worker is gone it is reported as ended, and gets
another place when it is wanted again. A worker that is cut off is gone for the registry before it is for the
client, so an old process may live on for a while: it has an older incarnation and a revoked key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from partita.engine.protocol.pool import messages as m
from partita.engine.protocol.pool.client_events import (
    Began,
    CannotRun,
    ClientEffect,
    Connect,
    Cut,
    Disconnect,
    Ended,
    FromPool,
    FromWorker,
    NotSent,
    SendToPool,
    SendToWorker,
)
from partita.engine.protocol.pool.pauses import OwnPauses
from partita.engine.protocol.pool.registry_events import Log, PoolTick

ASK_S: Final = 0.5
"""Seconds between two messages to the registry, and to each worker."""

SLOW_S: Final = 2.5
"""Seconds of silence after which a worker, or the registry, is reported as slow."""

SILENT_S: Final = 4.0
"""Seconds of silence after which a worker is gone, if it has not confirmed a host that is wanted there, or
nothing answers at its address: its hosts have ended with it.
"""

STUCK_S: Final = 10.0
"""Seconds of silence after which a worker is gone although its hosts run: their coordinator receives them."""

TROUBLED_S: Final = SILENT_S + 2.0
"""Seconds after which a worker that does not reach the run, or another worker, ends the run. A worker that
has just died is given up before, and then nobody has to reach it.
"""

AVOID_S: Final = 15.0
"""Seconds during which hosts go to a worker that was silent only if they fit nowhere else."""

REFUSED_S: Final = 3.0
"""Seconds after which a placement that no worker could meet is refused: a worker may just be joining."""


@dataclass(slots=True, eq=False)
class _Worker:
    """A worker with hosts of this run."""

    contact: m.Contact
    received_at: float
    sent_at: float = float("-inf")
    number: int = 0  # of its newest message
    is_slow: bool = False
    is_cut: bool = False  # it cannot be connected to since its last message
    troubled_at: float | None = None  # since when it does not reach all that it has to


@dataclass(slots=True, eq=False)
class _Host:
    """A host that is wanted."""

    incarnation: int
    bootstrap: bytes = field(repr=False)
    session: str = ""  # of the worker that has been asked for it
    is_known: bool = False  # the worker has it
    began: bool = False


class ClientMachine:
    """One run on the workers of a pool.

    Attributes:
        is_placed: whether every host has had a place.
        workers: the workers of the run, by session.
    """

    def __init__(
        self,
        ask: m.Ask,
        *,
        reach: tuple[tuple[str, str], ...],
        files: tuple[tuple[str, str], ...] = (),
        wait_s: float,
    ) -> None:
        """Creates a run without hosts.

        Args:
            ask: its needs; the seats in it are replaced.
            reach: endpoints, with names, that its workers have to reach.
            files: paths of files that its workers have to find, with their texts.
            wait_s: seconds to wait for workers, and for places that others have.
        """
        self.is_placed = False
        self.workers: dict[str, _Worker] = {}
        self._ask: Final = ask
        self._reach: Final = reach
        self._files: Final = files
        self._wait_s: Final = wait_s
        self._hosts: dict[str, _Host] = {}
        self._seats: dict[str, str] = {}
        self._asked_at = float("-inf")
        self._began_at: float | None = None
        self._impossible_at: float | None = None
        self._waits_for = ""
        self._ended = False
        self._pauses: Final = OwnPauses()
        self._number = self._asks = 0
        self._granted_at: float | None = None
        self._grant_number = -1
        self._registry = ""  # identity of the registry that answered last
        self._misses_pool = False
        self._avoid: dict[str, float] = {}  # until when, by session of a worker that was silent

    @property
    def seats(self) -> Mapping[str, m.Contact]:
        """The worker of each host that has a place."""
        return {h: self.workers[s].contact for h, s in self._seats.items() if s in self.workers}

    def want(self, name: str, incarnation: int, bootstrap: bytes) -> Sequence[ClientEffect]:
        """Wants a host, in the place of an older incarnation."""
        self._hosts[name] = _Host(incarnation, bootstrap)
        self._asked_at = float("-inf") if name not in self._seats else self._asked_at
        return self._tell_worker_of(name)

    def end(self, name: str) -> Sequence[ClientEffect]:
        """Wants a host no longer."""
        if name not in self._hosts:
            return []
        del self._hosts[name]
        return self._tell_worker_of(name)

    def close(self) -> Sequence[ClientEffect]:
        """Ends all hosts and leaves the pool."""
        self._ended = True
        hosts = m.Hosts(run=self._ask.run, number=self._next(), hosts=(), ends=True)
        ends = [SendToWorker(session, hosts) for session in self.workers]
        return [*ends, SendToPool(m.Leave(run=self._ask.run))]

    def receive(self, event: object, now: float) -> Sequence[ClientEffect]:
        """Returns the effects of an event at `now` (seconds, monotonic)."""
        if self._ended:
            return []
        match event:
            case PoolTick():
                return self._tick(now)
            case FromPool(message=m.Grant() as grant):
                return self._granted(grant, now)
            case FromPool(message=m.Rejection(reason=reason)):
                return [CannotRun(f"the pool refuses this run: {reason}")]
            case FromWorker(message=m.HostStates() as states):
                return self._reported(event.session, states, now)
            case FromPool() | FromWorker():
                return []
            case Cut(session=session):
                if session in self.workers:
                    self.workers[session].is_cut = True
                return []
            case NotSent(session=session):
                return self._not_sent(session)
            case _:
                raise AssertionError(event)

    # The registry.

    def _tick(self, now: float) -> list[ClientEffect]:
        if self._began_at is None:
            self._began_at = now
        pause_s = self._pauses.before(now)
        for worker in self.workers.values():
            worker.received_at = min(worker.received_at + pause_s, now)
        if self._granted_at is not None:
            self._granted_at = min(self._granted_at + pause_s, now)
        effects: list[ClientEffect] = []
        if now - self._asked_at >= ASK_S:
            self._asked_at = now
            effects.append(SendToPool(self._state(now)))
        for session, worker in list(self.workers.items()):
            effects += self._look_at(session, worker, now)
        pool_silent_s = 0.0 if self._granted_at is None else now - self._granted_at
        if pool_silent_s >= SLOW_S and not self._misses_pool:
            self._misses_pool = True
            effects.append(Log(f"the pool does not answer since {pool_silent_s:.1f} s; the run goes on"))
        if not self.is_placed and now - self._began_at >= self._wait_s:
            waited = f"after {self._wait_s:g} s of waiting: {self._waits_for or 'the pool does not answer'}"
            effects.append(CannotRun(f"the run has no place in the pool {waited}"))
        return effects

    def _not_sent(self, session: str) -> list[ClientEffect]:
        """Has a message sent again at the next tick: a new connection is there in a moment."""
        if session == "":
            self._asked_at = float("-inf")
        elif session in self.workers:
            self.workers[session].sent_at = float("-inf")
        return []

    def _look_at(self, session: str, worker: _Worker, now: float) -> list[ClientEffect]:
        """Sends a worker its hosts; reports one that is slow, and gives up one that is gone."""
        silent_s = now - worker.received_at
        hosts = [one for one in self._hosts.values() if one.session == session]
        unconfirmed = not hosts or not all(one.is_known for one in hosts)
        if silent_s >= STUCK_S or (silent_s >= SILENT_S and (unconfirmed or worker.is_cut)):
            self._avoid[session] = now + AVOID_S
            return self._lost(session, f"silent for {silent_s:.1f} s")
        effects: list[ClientEffect] = []
        if silent_s >= SLOW_S and not worker.is_slow:
            worker.is_slow = True
            at = f"worker '{worker.contact.name}' at {worker.contact.endpoint}"
            effects.append(Log(f"{at} is silent for {silent_s:.1f} s"))
        if now - worker.sent_at >= ASK_S:
            worker.sent_at = now
            effects.append(self._order(session))
        return effects

    def _state(self, now: float) -> m.Ask:
        ask = self._ask
        self._asks += 1
        self._avoid = {session: until for session, until in self._avoid.items() if until > now}
        return m.Ask(
            run=ask.run,
            key=ask.key,
            title=ask.title,
            versions=ask.versions,
            needs=ask.needs,
            seats=tuple(m.Seat(host=host, worker=session) for host, session in self._seats.items()),
            workers=ask.workers,
            number=self._asks,
            avoid=tuple(sorted(self._avoid)),
            earlier=ask.earlier,
        )

    def _granted(self, grant: m.Grant, now: float) -> list[ClientEffect]:
        if grant.number <= self._grant_number:
            return []
        effects = self._answered_by(grant, now)
        if grant.impossible and not self.is_placed:
            self._impossible_at = now if self._impossible_at is None else self._impossible_at
            if now - self._impossible_at >= REFUSED_S:
                return [CannotRun(f"the pool cannot place this run: {grant.waits_for}")]
        else:
            self._impossible_at = None
        if grant.waits_for != self._waits_for:
            self._waits_for = grant.waits_for
            effects += [Log(f"waits for a place: {grant.waits_for}")] if grant.waits_for else []
        for session in grant.gone:
            if session in self.workers and not self._is_heard(self.workers[session], now):
                effects += self._lost(session, "it has left the pool")
        effects += self._give_up(grant.taken)
        for contact in grant.workers:
            if contact.session not in self.workers:
                self.workers[contact.session] = _Worker(contact, now)
                effects.append(Connect(contact))
        for seat in grant.seats:
            if seat.worker in self.workers and self._seats.get(seat.host) not in self.workers:
                self._seats[seat.host] = seat.worker
                effects += self._said_elsewhere(seat)
        self.is_placed = self.is_placed or all(need.host in self._seats for need in self._ask.needs)
        return [*effects, *self._order_all(now)]

    def _said_elsewhere(self, seat: m.Seat) -> list[ClientEffect]:
        """Returns a line where a host has its place at another worker than the plan was made for."""
        name = self.workers[seat.worker].contact.name
        needs = (need for need in self._ask.needs if need.host == seat.host and need.workers)
        planned = next((need.workers[0] for need in needs), name)
        text = f"{seat.host} is at worker '{name}': '{planned}', of its plan, is gone or has no room"
        return [] if name == planned else [Log(text)]

    def _answered_by(self, grant: m.Grant, now: float) -> list[ClientEffect]:
        """Notes who answered; returns the line about a registry that was away or was started again."""
        before, silent_s = self._registry, now - (now if self._granted_at is None else self._granted_at)
        self._registry, self._grant_number, self._granted_at = grant.registry, grant.number, now
        missed, self._misses_pool = self._misses_pool, False
        if before and grant.registry != before:
            return [Log("the registry of the pool was started again; the run goes on")]
        return [Log(f"the pool answers again, after {silent_s:.1f} s")] if missed else []

    def _give_up(self, taken: Sequence[m.Seat]) -> list[ClientEffect]:
        """Gives up seats that other runs have: a registry that was started again gave them away."""
        effects: list[ClientEffect] = []
        for seat in taken:
            if self._seats.get(seat.host) != seat.worker:
                continue
            del self._seats[seat.host]
            host = self._hosts.get(seat.host)
            if host is not None and host.session == seat.worker:
                del self._hosts[seat.host]
                worker = self.workers.get(seat.worker)
                at = f"worker '{worker.contact.name}'" if worker is not None else "its worker"
                reason = f"its place at {at} belongs to another run"
                effects.append(Ended(seat.host, host.incarnation, reason))
            if seat.worker in self.workers and seat.worker not in self._seats.values():
                del self.workers[seat.worker]
                effects.append(Disconnect(seat.worker))
        return effects

    def _is_heard(self, worker: _Worker, now: float) -> bool:
        """Returns whether a worker that the registry has lost still answers this run."""
        return now - worker.received_at < 2 * ASK_S

    # Workers.

    def _order_all(self, now: float) -> list[ClientEffect]:
        waiting = {self._seats[name] for name, host in self._hosts.items() if self._unasked(name, host)}
        return [self._order(session) for session in sorted(waiting)]

    def _unasked(self, name: str, host: _Host) -> bool:
        return self._seats.get(name) in self.workers and host.session != self._seats[name]

    def _tell_worker_of(self, name: str) -> list[ClientEffect]:
        session = self._seats.get(name)
        return [self._order(session)] if session in self.workers and session is not None else []

    def _order(self, session: str) -> ClientEffect:
        wanted = []
        for name, host in self._hosts.items():
            if self._seats.get(name) == session:
                host.session = session
                bootstrap = b"" if host.is_known else host.bootstrap
                wanted.append(m.Wanted(name=name, incarnation=host.incarnation, bootstrap=bootstrap))
        others = (
            (f"worker '{one.contact.name}'", one.contact.endpoint)
            for other, one in self.workers.items()
            if other != session
        )
        reach = (*self._reach, *others)
        hosts = m.Hosts(
            run=self._ask.run, number=self._next(), hosts=tuple(wanted), reach=reach, files=self._files
        )
        return SendToWorker(session, hosts)

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _reported(self, session: str, states: m.HostStates, now: float) -> list[ClientEffect]:
        worker = self.workers.get(session)
        if worker is None or states.number < worker.number:
            return []
        silent_s, was_slow = now - worker.received_at, worker.is_slow
        worker.received_at, worker.number = now, states.number
        worker.is_slow = worker.is_cut = False
        self._avoid.pop(session, None)
        if states.trouble:
            return self._troubled(worker, states.trouble, now)
        worker.troubled_at = None
        effects: list[ClientEffect] = []
        if was_slow:
            effects.append(Log(f"worker '{worker.contact.name}' answers again, after {silent_s:.1f} s"))
        reported = {state.name: state for state in states.hosts}
        for name, host in list(self._hosts.items()):
            state = reported.get(name)
            if host.session != session:
                continue
            at = f"worker '{worker.contact.name}'"
            if state is None or state.incarnation != host.incarnation:
                if host.is_known:  # it may have run: an incarnation never begins twice
                    del self._hosts[name]
                    effects.append(Ended(name, host.incarnation, f"{at} has ended it"))
                continue
            host.is_known = True
            if state.pid and not host.began:
                host.began = True
                effects.append(Began(name, host.incarnation))
            if state.ended:
                del self._hosts[name]
                effects.append(Ended(name, host.incarnation, f"{state.ended} at {at}"))
        return effects

    @staticmethod
    def _troubled(worker: _Worker, trouble: str, now: float) -> list[ClientEffect]:
        """Reports that a worker does not reach all that it has to; ends the run if that lasts."""
        text = f"worker '{worker.contact.name}' at {worker.contact.endpoint}: {trouble}"
        if worker.troubled_at is None:
            worker.troubled_at = now
            return [Log(text)]
        return [CannotRun(text)] if now - worker.troubled_at >= TROUBLED_S else []

    def _lost(self, session: str, why: str) -> list[ClientEffect]:
        contact = self.workers.pop(session).contact
        self._grant_number = max(self._grant_number, self._asks)  # those before know nothing of the loss
        self._seats = {host: seat for host, seat in self._seats.items() if seat != session}
        effects: list[ClientEffect] = [Disconnect(session)]
        for name, host in list(self._hosts.items()):
            if host.session == session:
                del self._hosts[name]
                reason = f"its worker '{contact.name}' at {contact.endpoint} is gone ({why})"
                effects.append(Ended(name, host.incarnation, reason))
        return effects

    def validate(self) -> None:
        """Checks the invariants. Raises AssertionError."""
        assert all(session in self.workers for session in self._seats.values()), self._seats
        for name, host in self._hosts.items():
            assert not host.is_known or host.session in self.workers, name
