"""The client of a pool: one run, its hosts' places, and what their workers report of them.

A host is wanted from `want` on until `end`; where its worker is gone it is reported as ended, and gets
another place when it is wanted again. A worker that is cut off is gone for the registry before it is for the
client, so an old process may live on for a while: it has an older incarnation and a revoked key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from partita.engine.protocol.pool import messages as m
from partita.engine.protocol.pool.registry import Log, PoolTick

ASK_S: Final = 0.5
"""Seconds between two messages to the registry, and to each worker."""

SILENT_S: Final = 4.0
"""Seconds of silence after which a worker is gone for its clients."""

REFUSED_S: Final = 3.0
"""Seconds after which a placement that no worker could meet is refused: a worker may just be joining."""


@dataclass(frozen=True, slots=True)
class FromWorker:
    """Event: a worker's message."""

    session: str
    message: m.PoolMessage


@dataclass(frozen=True, slots=True)
class FromPool:
    """Event: the registry's answer."""

    message: m.PoolMessage


@dataclass(frozen=True, slots=True)
class SendToPool:
    """Effect: send this to the registry."""

    message: m.PoolMessage


@dataclass(frozen=True, slots=True)
class SendToWorker:
    """Effect: send this to a worker."""

    session: str
    message: m.PoolMessage


@dataclass(frozen=True, slots=True)
class Connect:
    """Effect: connect to a worker's door."""

    worker: m.Contact


@dataclass(frozen=True, slots=True)
class Disconnect:
    """Effect: end the connection to a worker."""

    session: str


@dataclass(frozen=True, slots=True)
class Began:
    """Effect: the process of a host runs."""

    name: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class Ended:
    """Effect: the process of a host has ended."""

    name: str
    incarnation: int
    reason: str


@dataclass(frozen=True, slots=True)
class CannotRun:
    """Effect: the run cannot go on, for this reason."""

    reason: str


ClientEffect: TypeAlias = SendToPool | SendToWorker | Connect | Disconnect | Began | Ended | CannotRun | Log


@dataclass(slots=True, eq=False)
class _Worker:
    """A worker with hosts of this run."""

    contact: m.Contact
    received_at: float
    sent_at: float = float("-inf")
    number: int = 0  # of its newest message


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
        self._number = 0

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
            case _:
                raise AssertionError(event)

    # The registry.

    def _tick(self, now: float) -> list[ClientEffect]:
        if self._began_at is None:
            self._began_at = now
        effects: list[ClientEffect] = []
        if now - self._asked_at >= ASK_S:
            self._asked_at = now
            effects.append(SendToPool(self._state()))
        for session, worker in list(self.workers.items()):
            silent_s = now - worker.received_at
            if silent_s >= SILENT_S:
                effects += self._lost(session, f"silent for {silent_s:.1f} s")
            elif now - worker.sent_at >= ASK_S:
                worker.sent_at = now
                effects.append(self._order(session))
        if not self.is_placed and now - self._began_at >= self._wait_s:
            waited = f"after {self._wait_s:g} s of waiting: {self._waits_for or 'the pool does not answer'}"
            effects.append(CannotRun(f"the run has no place in the pool {waited}"))
        return effects

    def _state(self) -> m.Ask:
        ask = self._ask
        return m.Ask(
            run=ask.run,
            key=ask.key,
            title=ask.title,
            versions=ask.versions,
            needs=ask.needs,
            seats=tuple(m.Seat(host=host, worker=session) for host, session in self._seats.items()),
            workers=ask.workers,
        )

    def _granted(self, grant: m.Grant, now: float) -> list[ClientEffect]:
        effects: list[ClientEffect] = []
        if grant.impossible and not self.is_placed:
            self._impossible_at = now if self._impossible_at is None else self._impossible_at
            if now - self._impossible_at >= REFUSED_S:
                return [CannotRun(f"the pool cannot place this run: {grant.waits_for}")]
        else:
            self._impossible_at = None
        if grant.waits_for != self._waits_for:
            self._waits_for = grant.waits_for
            effects += [Log(f"waits for a place: {grant.waits_for}")] if grant.waits_for else []
        contacts = {contact.session: contact for contact in grant.workers}
        for session, worker in list(self.workers.items()):
            if session not in contacts and not self._is_heard(worker, now):
                effects += self._lost(session, "it has left the pool")
        for session, contact in contacts.items():
            if session not in self.workers:
                self.workers[session] = _Worker(contact, now)
                effects.append(Connect(contact))
        for seat in grant.seats:
            if seat.worker in self.workers and self._seats.get(seat.host) not in self.workers:
                self._seats[seat.host] = seat.worker
        self.is_placed = self.is_placed or all(need.host in self._seats for need in self._ask.needs)
        return [*effects, *self._order_all(now)]

    def _is_heard(self, worker: _Worker, now: float) -> bool:
        """Whether a worker that the registry has lost still answers this run."""
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
        worker.received_at, worker.number = now, states.number
        if states.trouble:
            return [
                CannotRun(f"worker '{worker.contact.name}' at {worker.contact.endpoint}: {states.trouble}")
            ]
        effects: list[ClientEffect] = []
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

    def _lost(self, session: str, why: str) -> list[ClientEffect]:
        contact = self.workers.pop(session).contact
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
