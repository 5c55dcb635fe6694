"""The registry of a pool: its workers, the runs on them, and who has a place where.

It knows nothing that its workers and clients do not repeat: a registry that is started again has everything
after their next messages, and no run notices. Until then it gives nothing away that a run may have, see
`members`. It starts no host and sends no number of a run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from partita.engine.protocol.pool import messages as m
from partita.engine.protocol.pool.members import SLOW_S, Members, RunMember, WorkerMember
from partita.engine.protocol.pool.pauses import OwnPauses
from partita.engine.protocol.pool.placement import explained, place
from partita.engine.protocol.pool.registry_events import (
    Answer,
    FromVisitor,
    Log,
    PoolTick,
    Probe,
    Probed,
    RegistryEffect,
    Revoked,
)
from partita.engine.protocol.pool.versions import difference, mismatch

WORKER_DEAD_S: Final = 10.0
"""Seconds of silence after which a worker is taken out of the pool."""

CLIENT_DEAD_S: Final = 20.0
"""Seconds of silence after which the places of a run are given to others."""

_REPROBE_S: Final = 5.0  # before a worker that could not be reached is tried again
_JOINING_S: Final = 2.0  # of a new registry, to which workers of an earlier one have not come yet
_MOST_GONE: Final = 1024


class RegistryMachine:
    """The registry of one pool."""

    def __init__(self, versions: Mapping[str, str], *, identity: str) -> None:
        """Creates a pool without workers.

        Args:
            versions: by library, of the registry's own process.
            identity: of this process: no registry of the pool had it before.
        """
        self._versions: Final = dict(versions)
        self._identity: Final = identity
        self._members: Final = Members(identity)
        self._began_at: float | None = None
        self._pauses: Final = OwnPauses()
        self._number = 0  # of the newest orders
        self._gone: dict[str, dict[str, int]] = {}  # `listed` of each worker that was removed, oldest first
        self._replaced: dict[str, str] = {}  # owners of runs whose places another process has, oldest first
        self._rejected: dict[str, None] = {}  # sessions and runs, oldest first: each is reported once
        self._drained: frozenset[str] = frozenset()  # names
        self._drains_all = False

    @property
    def workers(self) -> tuple[str, ...]:
        """The names of the workers that are in the pool, sorted."""
        return tuple(sorted(worker.name for worker in self._members.workers.values() if worker.is_in))

    def receive(self, event: object, now: float) -> Sequence[RegistryEffect]:
        """Returns the effects of an event at `now` (seconds, monotonic)."""
        self._began_at = now if self._began_at is None else self._began_at
        match event:
            case FromVisitor(message=m.Join() as join):
                return self._joined(event, join, now)
            case FromVisitor(message=m.Ask() as ask):
                return self._asked(event, ask, now)
            case FromVisitor(message=m.Leave() as leave):
                return self._left(event, leave)
            case FromVisitor(message=m.Inspect() as inspect):
                return self._inspected(event, inspect, now)
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
        known = self._members.workers.get(join.session)
        if known is not None and known.member != event.member:
            reason = "another key has joined with this session; start the worker again"
        if reason:
            return self._once(join.session, event, f"worker '{join.name}' at {join.endpoint}", reason)
        if known is not None and join.number < known.join.number:
            return []
        effects: list[RegistryEffect] = []
        if known is None:
            known = WorkerMember(join, event.member, self._name_for(join.name), event.route, now)
            known.listed = self._gone.pop(join.session, {})
            self._members.workers[join.session] = known
            known.draining = join.draining or self._drains_all or known.name in self._drained
        if known.slow:
            effects.append(Log(f"worker '{known.name}' answers again, after {now - known.received_at:.1f} s"))
        moved = known.join.endpoint != join.endpoint
        known.join, known.route, known.received_at, known.slow = join, event.route, now, False
        obeyed = join.orders if join.registry == self._identity else -1
        known.listed = {run: n for run, n in known.listed.items() if n > obeyed}
        if known.trouble is None or known.trouble or moved:
            effects += self._probe(known, now, again=moved)
        if known.trouble == "":
            effects.append(self._orders(known))
        elif known.trouble is not None:
            effects.append(Answer(event.route, m.Rejection(reason=known.trouble, final=False)))
        return effects

    def _probe(self, worker: WorkerMember, now: float, *, again: bool) -> list[RegistryEffect]:
        if worker.probed and now < worker.probe_at and not again:
            return []
        worker.probed, worker.probe_at = True, now + _REPROBE_S
        return [Probe(worker.join.session, worker.join.endpoint)]

    def _probed(self, event: Probed, now: float) -> list[RegistryEffect]:
        worker = self._members.workers.get(event.session)
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

    def _orders(self, worker: WorkerMember) -> Answer:
        session = worker.join.session
        self._number += 1
        clients = tuple(
            m.Client(
                run=run.ask.run,
                key=run.ask.key,
                title=run.ask.title,
                owner=run.member,
                earlier=run.ask.earlier,
            )
            for run in self._members.runs.values()
            if session in run.seats.values()
        )
        worker.listed.update((client.run, self._number) for client in clients)
        orders = m.Orders(
            name=worker.name,
            clients=clients,
            draining=worker.draining,
            registry=self._identity,
            number=self._number,
        )
        return Answer(worker.route, orders)

    def _name_for(self, wanted: str) -> str:
        """Returns a name that no worker has."""
        taken = {worker.name for worker in self._members.workers.values()}
        names = (wanted if n == 1 else f"{wanted}-{n}" for n in range(1, len(taken) + 2))
        return next(name for name in names if name not in taken)

    # Runs.

    def _asked(self, event: FromVisitor, ask: m.Ask, now: float) -> list[RegistryEffect]:
        reason = self._rejection(event, "client", ask.versions)
        run = self._members.runs.get(ask.run)
        if run is not None and run.member != event.member:
            reason = "another key has a run of this id; start it again"
        if self._replaced.get(ask.run) == event.member:
            reason = "another process goes on with this run"
        if reason:
            return self._once(ask.run, event, f"the run of {ask.title}", reason)
        if run is not None and ask.number < run.ask.number:
            return []
        effects: list[RegistryEffect] = []
        if run is None:
            run = self._members.runs[ask.run] = RunMember(ask, event.member, now)
            has = f", and has {len(ask.seats)} by an earlier registry" if ask.seats else ""
            effects.append(Log(f"a run of {ask.title} needs {len(ask.needs)} places{has}"))
            effects += self._take_over(run)
        run.ask, run.received_at = ask, now
        taken = self._members.claim(run)
        effects += self._place(run)
        return [*effects, Answer(event.route, self._grant(run, taken, now))]

    def _take_over(self, run: RunMember) -> list[RegistryEffect]:
        """Gives a run the places of its earlier processes, which are dead; ends what they have asked for."""
        effects: list[RegistryEffect] = []
        for name in run.ask.earlier:
            before = self._members.runs.get(name)
            if before is None or before is run or before.member != run.member:
                continue
            if before.ask.needs == run.ask.needs:
                run.seats = dict(before.seats)
            self._replaced[name] = run.member
            _keep_latest(self._replaced)
            effects += self._remove_run(name, "goes on in a new process")
        return effects

    def _place(self, run: RunMember) -> list[RegistryEffect]:
        """Gives the hosts of a run places, and tells workers of their new clients."""
        self._members.keep(run)
        begun = bool(run.seats or run.claims)
        if len(self._members.offers()) < run.ask.workers and not begun:
            return []
        before = set(run.seats.values())
        placed = self._members.placed(run)
        if placed.missing and not begun:
            return []  # all hosts of a run get their first places at once, or none does
        run.seats = dict(placed.seats)
        new = sorted(set(run.seats.values()) - before)
        return [self._orders(self._members.workers[session]) for session in new]

    def _grant(self, run: RunMember, taken: tuple[m.Seat, ...], now: float) -> m.Grant:
        waits_for, impossible = self._missing(run, now)
        used = set(run.seats.values())
        contacts = (
            m.Contact(session=session, name=one.name, endpoint=one.join.endpoint, machine=one.join.machine)
            for session, one in self._members.workers.items()
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
            number=run.ask.number,
            registry=self._identity,
            taken=taken,
            gone=tuple(sorted({seat.worker for seat in run.ask.seats} & self._gone.keys())),
        )

    def _missing(self, run: RunMember, now: float) -> tuple[str, bool]:
        """Words what is missing for hosts without a place, and whether no worker could ever meet it."""
        members = self._members
        offers = members.offers(of=run.ask.run)
        has_begun = bool(run.seats or run.claims)
        if not has_begun and len(members.offers()) < run.ask.workers:
            return f"{len(members.offers())} of {run.ask.workers} workers have joined", False
        placed = members.placed(run)
        if not placed.missing:
            return "", False
        reasons = {one.name: members.reserved(one.session, of=run.ask.run) for one in offers}
        reserved = [f"{name} {why}" for name, why in sorted(reasons.items()) if why]
        is_old = self._began_at is not None and now - self._began_at >= _JOINING_S
        whole = members.offers(of=run.ask.run, whole=True)
        impossible = is_old and bool(place(run.ask.needs, {}, whole).missing)
        return "; ".join([explained(placed, offers), *reserved]), impossible

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
        self._rejected[subject] = None
        _keep_latest(self._rejected)
        return [Log(f"{who} (key '{event.member}') is refused: {reason}"), *effects] if new else effects

    def _reject(self, event: FromVisitor, reason: str) -> RegistryEffect:
        return Answer(event.route, m.Rejection(reason=reason))

    def _left(self, event: FromVisitor, leave: m.Leave) -> list[RegistryEffect]:
        effects: list[RegistryEffect] = []
        worker = self._members.workers.get(leave.session)
        if worker is not None and worker.member == event.member:
            effects += self._remove_worker(leave.session, "left")
        run = self._members.runs.get(leave.run)
        if run is not None and run.member == event.member:
            effects += self._remove_run(leave.run, "has ended")
        return effects

    def _inspected(self, event: FromVisitor, inspect: m.Inspect, now: float) -> list[RegistryEffect]:
        if event.role != "client":
            return [self._reject(event, f"the key '{event.member}' is authorised as a {event.role}")]
        effects, members = list[RegistryEffect](), self._members
        if inspect.drain is not None:
            effects += self._drain(inspect.drain)
        workers = tuple(
            m.WorkerStatus(
                name=worker.name,
                endpoint=worker.join.endpoint,
                resources=worker.join.resources,
                free=members.free(session),
                runs=tuple(r.ask.title for r in members.runs.values() if session in r.seats.values()),
                draining=worker.draining,
                note=self._note(session, now),
            )
            for session, worker in sorted(members.workers.items(), key=lambda item: item[1].name)
            if worker.is_in
        )
        runs = tuple((run.ask.title, len(run.ask.needs)) for run in members.runs.values())
        return [*effects, Answer(event.route, m.Status(workers=workers, runs=runs))]

    def _note(self, session: str, now: float) -> str:
        worker = self._members.workers[session]
        if worker.slow:
            return f"silent for {now - worker.received_at:.0f} s"
        return self._members.reserved(session)

    def _drain(self, names: Sequence[str]) -> list[RegistryEffect]:
        self._drained |= frozenset(names)
        self._drains_all = self._drains_all or not names
        effects: list[RegistryEffect] = []
        for worker in self._members.workers.values():
            if not worker.draining and (self._drains_all or worker.name in self._drained):
                worker.draining = True
                effects.append(Log(f"worker '{worker.name}' is drained: it ends after its runs"))
                effects.append(self._orders(worker))
        return effects

    def _revoked(self, members: frozenset[str]) -> list[RegistryEffect]:
        effects: list[RegistryEffect] = []
        for session in [s for s, one in self._members.workers.items() if one.member not in members]:
            effects += self._remove_worker(session, "lost its authorisation")
        for run in [name for name, one in self._members.runs.items() if one.member not in members]:
            effects += self._remove_run(run, "lost its authorisation")
        self._rejected.clear()
        return effects

    def _tick(self, now: float) -> list[RegistryEffect]:
        effects: list[RegistryEffect] = []
        pause_s = self._pauses.before(now)
        members: tuple[WorkerMember | RunMember, ...] = (
            *self._members.workers.values(),
            *self._members.runs.values(),
        )
        for member in members:
            member.received_at = min(member.received_at + pause_s, now)
        for session, worker in list(self._members.workers.items()):
            silent_s = now - worker.received_at
            if silent_s >= WORKER_DEAD_S:
                effects += self._remove_worker(session, f"is gone: silent for {silent_s:.0f} s")
            elif silent_s >= SLOW_S and not worker.slow:
                worker.slow = True
                if worker.is_in:
                    effects.append(Log(f"worker '{worker.name}' is silent for {silent_s:.0f} s"))
        for name, run in list(self._members.runs.items()):
            if now - run.received_at >= CLIENT_DEAD_S:
                effects += self._remove_run(name, f"is gone: silent for {now - run.received_at:.0f} s")
        return effects

    def _remove_worker(self, session: str, why: str) -> list[RegistryEffect]:
        worker = self._members.workers.pop(session)
        self._gone[session] = worker.listed
        _keep_latest(self._gone)
        return [Log(f"worker '{worker.name}' {why}")] if worker.trouble is not None else []

    def _remove_run(self, name: str, why: str) -> list[RegistryEffect]:
        run, workers = self._members.runs.pop(name), self._members.workers
        orders = [self._orders(workers[s]) for s in sorted(set(run.seats.values())) if s in workers]
        return [Log(f"the run of {run.ask.title} {why}"), *orders]

    def validate(self) -> None:
        """Checks the invariants. Raises AssertionError."""
        self._members.validate()


def _keep_latest(found: dict[str, Any]) -> None:
    """Drops the oldest of those that are gone or refused, if they are many."""
    while len(found) > _MOST_GONE:
        del found[next(iter(found))]
