"""The registry of a pool: its workers, the runs on them, and who has a place where.

It knows nothing that its workers and clients do not repeat: a registry that is started again has everything
after their next messages, and no run notices. It starts no host and sends no number of a run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from partita.engine.protocol.pool import messages as m
from partita.engine.protocol.pool.placement import Offer, explained, place
from partita.engine.protocol.pool.resources import Resources
from partita.engine.protocol.pool.versions import difference, mismatch

WORKER_DEAD_S: Final = 6.0
"""Seconds of silence after which a worker is taken out of the pool."""

CLIENT_DEAD_S: Final = 20.0
"""Seconds of silence after which the places of a run are given to others."""

_REPROBE_S: Final = 5.0  # before a worker that could not be reached is tried again


@dataclass(frozen=True, slots=True)
class FromVisitor:
    """Event: a message came to the registry's door, from the owner of an authorised key.

    Args:
        route: the connection, for the answer.
        member: name of the key, as it was authorised.
        role: role of the key.
        message: what was asked.
    """

    route: bytes
    member: str
    role: str
    message: m.PoolMessage


@dataclass(frozen=True, slots=True)
class Probed:
    """Event, answers `Probe`: the worker can be reached, or `trouble` says why not."""

    session: str
    trouble: str


@dataclass(frozen=True, slots=True)
class PoolTick:
    """Event: time passes; comes several times a second."""


@dataclass(frozen=True, slots=True)
class Revoked:
    """Event: the keys that are authorised have changed; these members still are."""

    members: frozenset[str]


@dataclass(frozen=True, slots=True)
class Answer:
    """Effect: answer over this connection."""

    route: bytes
    message: m.PoolMessage


@dataclass(frozen=True, slots=True)
class Probe:
    """Effect: find out whether the endpoint can be reached; `Probed` reports it."""

    session: str
    endpoint: str


@dataclass(frozen=True, slots=True)
class Log:
    """Effect: show a line."""

    text: str


RegistryEffect: TypeAlias = Answer | Probe | Log


@dataclass(slots=True, eq=False)
class _Worker:
    """A worker, by its newest message."""

    join: m.Join
    member: str
    name: str
    route: bytes
    received_at: float
    probed: bool = False
    trouble: str | None = None  # why it cannot be reached; "" if it can, None while that is not known
    probe_at: float = 0.0
    draining: bool = False
    used: dict[str, Resources] = field(default_factory=dict)  # by run

    @property
    def is_in(self) -> bool:
        """Whether it takes part in the pool."""
        return self.trouble == ""


@dataclass(slots=True, eq=False)
class _Run:
    """A run, by its client's newest message."""

    ask: m.Ask
    member: str
    received_at: float
    seats: dict[str, str] = field(default_factory=dict)  # session of the worker, by host
    has_claims: bool = False  # an earlier registry gave it places, which others may have got meanwhile


class RegistryMachine:
    """The registry of one pool."""

    def __init__(self, versions: Mapping[str, str]) -> None:
        """Creates a pool without workers.

        Args:
            versions: by library, of the registry's own process.
        """
        self._versions: Final = dict(versions)
        self._workers: dict[str, _Worker] = {}
        self._runs: dict[str, _Run] = {}
        self._rejected: set[str] = set()  # sessions and runs: each is reported once
        self._drained: frozenset[str] = frozenset()  # names
        self._drains_all = False

    @property
    def workers(self) -> tuple[str, ...]:
        """The names of the workers that are in the pool, sorted."""
        return tuple(sorted(worker.name for worker in self._workers.values() if worker.is_in))

    def receive(self, event: object, now: float) -> Sequence[RegistryEffect]:
        """Returns the effects of an event at `now` (seconds, monotonic)."""
        match event:
            case FromVisitor(message=m.Join() as join):
                return self._joined(event, join, now)
            case FromVisitor(message=m.Ask() as ask):
                return self._asked(event, ask, now)
            case FromVisitor(message=m.Leave() as leave):
                return self._left(event, leave)
            case FromVisitor(message=m.Inspect() as inspect):
                return self._inspected(event, inspect)
            case FromVisitor():
                return [
                    self._reject(
                        event, f"a {type(event.message).__name__} is none of the registry's business"
                    )
                ]
            case Probed():
                return self._probed(event, now)
            case Revoked(members=members):
                return self._revoked(members)
            case PoolTick():
                return self._tick(now)
            case _:
                raise AssertionError(event)

    # Workers.

    def _joined(self, event: FromVisitor, join: m.Join, now: float) -> list[RegistryEffect]:
        reason = self._rejection(event, "worker", join.versions)
        known = self._workers.get(join.session)
        if known is not None and known.member != event.member:
            reason = "another key has joined with this session; start the worker again"
        if reason:
            return self._once(join.session, event, f"worker '{join.name}' at {join.endpoint}", reason)
        effects: list[RegistryEffect] = []
        if known is None:
            known = _Worker(join, event.member, self._name_for(join.name), event.route, now)
            self._workers[join.session] = known
            known.draining = self._drains_all or known.name in self._drained
        moved = known.join.endpoint != join.endpoint
        known.join, known.route, known.received_at = join, event.route, now
        if known.trouble is None or known.trouble or moved:
            effects += self._probe(known, now, again=moved)
        if known.trouble == "":
            effects.append(self._orders(known))
        elif known.trouble is not None:
            effects.append(Answer(event.route, m.Rejection(reason=known.trouble, final=False)))
        return effects

    def _probe(self, worker: _Worker, now: float, *, again: bool) -> list[RegistryEffect]:
        if worker.probed and now < worker.probe_at and not again:
            return []
        worker.probed, worker.probe_at = True, now + _REPROBE_S
        return [Probe(worker.join.session, worker.join.endpoint)]

    def _probed(self, event: Probed, now: float) -> list[RegistryEffect]:
        worker = self._workers.get(event.session)
        if worker is None:
            return []
        before, join = worker.trouble, worker.join
        worker.trouble = event.trouble and (
            f"the pool cannot reach the worker at {join.endpoint} ({event.trouble}); start it with "
            "--interface or --contact-address of a network that both are in"
        )
        if worker.trouble == before:
            return []
        if worker.trouble:
            effects: list[RegistryEffect] = [Log(f"worker '{worker.name}' is not let in: {worker.trouble}")]
            return [*effects, Answer(worker.route, m.Rejection(reason=worker.trouble, final=False))]
        joined = f"worker '{worker.name}' joined from {join.endpoint} with {join.resources}"
        differs = difference(self._versions, join.versions)
        also = [Log(f"worker '{worker.name}' has {differs}: last bits may differ")] if differs else []
        return [Log(joined), *also, self._orders(worker)]

    def _orders(self, worker: _Worker) -> Answer:
        session = worker.join.session
        clients = tuple(
            m.Client(run=run.ask.run, key=run.ask.key, title=run.ask.title)
            for run in self._runs.values()
            if session in run.seats.values()
        )
        return Answer(worker.route, m.Orders(name=worker.name, clients=clients, draining=worker.draining))

    def _name_for(self, wanted: str) -> str:
        """Returns a name that no worker has."""
        taken = {worker.name for worker in self._workers.values()}
        names = (wanted if n == 1 else f"{wanted}-{n}" for n in range(1, len(taken) + 2))
        return next(name for name in names if name not in taken)

    # Runs.

    def _asked(self, event: FromVisitor, ask: m.Ask, now: float) -> list[RegistryEffect]:
        reason = self._rejection(event, "client", ask.versions)
        run = self._runs.get(ask.run)
        if run is not None and run.member != event.member:
            reason = "another key has a run of this id; start it again"
        if reason:
            return self._once(ask.run, event, f"the run of {ask.title}", reason)
        effects: list[RegistryEffect] = []
        if run is None:
            run = self._runs[ask.run] = _Run(ask, event.member, now)
            run.seats = {seat.host: seat.worker for seat in ask.seats}
            run.has_claims = bool(run.seats)
            effects.append(Log(f"a run of {ask.title} needs {len(ask.needs)} places"))
        run.ask, run.received_at = ask, now
        effects += self._place(run)
        return [*effects, Answer(event.route, self._grant(run))]

    def _place(self, run: _Run) -> list[RegistryEffect]:
        """Gives the hosts of a run places, and tells workers of their new clients."""
        names = {need.host for need in run.ask.needs}
        run.seats = {host: s for host, s in run.seats.items() if s in self._workers and host in names}
        if len(self._offers()) < run.ask.workers and not run.seats:
            return []
        before = set(run.seats.values())
        placed = place(run.ask.needs, run.seats, self._offers(of=run))
        if placed.missing and not run.seats:
            return []  # all hosts of a run get their first places at once, or none does
        run.seats = dict(placed.seats)
        return [self._orders(self._workers[session]) for session in sorted(set(run.seats.values()) - before)]

    def _grant(self, run: _Run) -> m.Grant:
        placed = place(run.ask.needs, run.seats, self._offers(of=run))
        short = run.ask.workers - len(self._offers())
        waits_for, impossible = "", False
        if not run.seats and short > 0:
            waits_for = f"{len(self._offers())} of {run.ask.workers} workers have joined"
        elif placed.missing or len(run.seats) < len(run.ask.needs):
            waits_for = explained(placed, self._offers(of=run))
            whole = self._offers(whole=True)
            impossible = bool(place(run.ask.needs, {}, whole).missing)
        used = set(run.seats.values())
        contacts = (
            m.Contact(session=session, name=one.name, endpoint=one.join.endpoint, machine=one.join.machine)
            for session, one in self._workers.items()
            if session in used
        )
        seats = tuple(m.Seat(host=host, worker=session) for host, session in sorted(run.seats.items()))
        return m.Grant(
            run=run.ask.run,
            seats=seats,
            workers=tuple(sorted(contacts, key=lambda one: one.name)),
            waits_for=waits_for,
            impossible=impossible,
            joined=self.workers,
        )

    def _offers(self, of: _Run | None = None, *, whole: bool = False) -> list[Offer]:
        """Returns the workers that take hosts, with what no run has taken, or (`whole`) with all they have.

        `of` is a run whose own places count too, on workers that are drained.
        """
        own = set() if of is None else set(of.seats.values())
        return [
            Offer(
                session,
                worker.name,
                worker.join.machine,
                worker.join.resources if whole else self._free(session),
                worker.join.resources,
            )
            for session, worker in self._workers.items()
            if worker.is_in and (not worker.draining or session in own)
        ]

    def _free(self, session: str) -> Resources:
        left = self._workers[session].join.resources
        for run in self._runs.values():
            needs = {need.host: need.resources for need in run.ask.needs}
            for host, seat in run.seats.items():
                if seat == session and host in needs:
                    left = left.minus(needs[host])
        return left

    # Everybody.

    def _rejection(self, event: FromVisitor, role: str, versions: Mapping[str, str]) -> str:
        if event.role != role:
            return (
                f"the key '{event.member}' is authorised as a {event.role}, not as a {role}; "
                f"`partita keys authorise` it --as {role}"
            )
        differs = mismatch(self._versions, versions)
        return f"its versions do not match the pool's: {differs}" if differs else ""

    def _once(self, subject: str, event: FromVisitor, who: str, reason: str) -> list[RegistryEffect]:
        """Rejects somebody; the first time with a line."""
        new, effects = subject not in self._rejected, [self._reject(event, reason)]
        self._rejected.add(subject)
        return [Log(f"{who} (key '{event.member}') is refused: {reason}"), *effects] if new else effects

    def _reject(self, event: FromVisitor, reason: str) -> RegistryEffect:
        return Answer(event.route, m.Rejection(reason=reason))

    def _left(self, event: FromVisitor, leave: m.Leave) -> list[RegistryEffect]:
        effects: list[RegistryEffect] = []
        worker = self._workers.get(leave.session)
        if worker is not None and worker.member == event.member:
            effects += self._remove_worker(leave.session, "left")
        run = self._runs.get(leave.run)
        if run is not None and run.member == event.member:
            effects += self._remove_run(leave.run, "has ended")
        return effects

    def _inspected(self, event: FromVisitor, inspect: m.Inspect) -> list[RegistryEffect]:
        if event.role != "client":
            return [self._reject(event, f"the key '{event.member}' is authorised as a {event.role}")]
        effects: list[RegistryEffect] = []
        if inspect.drain is not None:
            effects += self._drain(inspect.drain)
        workers = tuple(
            m.WorkerStatus(
                name=worker.name,
                endpoint=worker.join.endpoint,
                resources=worker.join.resources,
                free=self._free(session),
                runs=tuple(r.ask.title for r in self._runs.values() if session in r.seats.values()),
                draining=worker.draining,
            )
            for session, worker in sorted(self._workers.items(), key=lambda item: item[1].name)
            if worker.is_in
        )
        runs = tuple((run.ask.title, len(run.ask.needs)) for run in self._runs.values())
        return [*effects, Answer(event.route, m.Status(workers=workers, runs=runs))]

    def _drain(self, names: Sequence[str]) -> list[RegistryEffect]:
        self._drained |= frozenset(names)
        self._drains_all = self._drains_all or not names
        effects: list[RegistryEffect] = []
        for worker in self._workers.values():
            if not worker.draining and (self._drains_all or worker.name in self._drained):
                worker.draining = True
                effects.append(Log(f"worker '{worker.name}' is drained: it ends after its runs"))
                effects.append(self._orders(worker))
        return effects

    def _revoked(self, members: frozenset[str]) -> list[RegistryEffect]:
        effects: list[RegistryEffect] = []
        for session in [s for s, worker in self._workers.items() if worker.member not in members]:
            effects += self._remove_worker(session, "lost its authorisation")
        for run in [name for name, run in self._runs.items() if run.member not in members]:
            effects += self._remove_run(run, "lost its authorisation")
        self._rejected.clear()
        return effects

    def _tick(self, now: float) -> list[RegistryEffect]:
        effects: list[RegistryEffect] = []
        for session, worker in list(self._workers.items()):
            silent_s = now - worker.received_at
            if silent_s >= WORKER_DEAD_S:
                effects += self._remove_worker(session, f"is gone: silent for {silent_s:.0f} s")
        for name, run in list(self._runs.items()):
            if now - run.received_at >= CLIENT_DEAD_S:
                effects += self._remove_run(name, f"is gone: silent for {now - run.received_at:.0f} s")
        return effects

    def _remove_worker(self, session: str, why: str) -> list[RegistryEffect]:
        worker = self._workers.pop(session)
        return [Log(f"worker '{worker.name}' {why}")] if worker.trouble is not None else []

    def _remove_run(self, name: str, why: str) -> list[RegistryEffect]:
        run = self._runs.pop(name)
        orders = [
            self._orders(self._workers[s]) for s in sorted(set(run.seats.values())) if s in self._workers
        ]
        return [Log(f"the run of {run.ask.title} {why}"), *orders]

    def validate(self) -> None:
        """Checks the invariants. Raises AssertionError."""
        names = [worker.name for worker in self._workers.values()]
        assert len(set(names)) == len(names), names
        for session, worker in self._workers.items():
            runs = [run for run in self._runs.values() if session in run.seats.values()]
            if any(run.has_claims for run in runs):
                continue  # whoever has a place keeps it
            taken = Resources()
            for run in runs:
                needs = {need.host: need.resources for need in run.ask.needs}
                taken = sum((needs[h] for h, s in run.seats.items() if s == session and h in needs), taken)
            assert worker.join.resources.covers(taken), (worker.name, taken)
