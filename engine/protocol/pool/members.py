"""Workers and runs that a registry knows: who has a seat where, what is free, and what may not be given away.

A seat is given only at a worker that is known to hold no run but those with seats there. Two facts show it:
the runs that the worker reports, and the newest `Orders` that it has obeyed. A worker of an earlier registry
has obeyed none of this one, so it is reserved until it reports; then, until each run that it reports has
claimed its seats, or has ended there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from partita.engine.protocol.pool import messages as m
from partita.engine.protocol.pool.placement import Offer, Placed, place
from partita.engine.protocol.pool.resources import Resources

SLOW_S: Final = 3.0
"""Seconds of silence after which a worker gets no further hosts, and is reported as slow."""


@dataclass(slots=True, eq=False)
class WorkerMember:
    """A worker, by its newest message.

    Attributes:
        trouble: why it cannot be reached; "" if it can, None while that is not known.
        listed: number of the newest `Orders` with a run that the worker may not have obeyed, by run.
    """

    join: m.Join
    member: str
    name: str
    route: bytes
    received_at: float
    probed: bool = False
    trouble: str | None = None
    probe_at: float = 0.0
    draining: bool = False
    slow: bool = False
    listed: dict[str, int] = field(default_factory=dict)

    @property
    def is_in(self) -> bool:
        """Returns whether it takes part in the pool."""
        return self.trouble == ""


@dataclass(slots=True, eq=False)
class RunMember:
    """A run, by its client's newest message. `seats`: session of the worker, by host."""

    ask: m.Ask
    member: str
    received_at: float
    seats: dict[str, str] = field(default_factory=dict)
    claims: dict[str, str] = field(default_factory=dict)  # seats that it uses, at workers not known yet

    @property
    def needs(self) -> dict[str, Resources]:
        """The needs of its hosts, by name."""
        return {need.host: need.resources for need in self.ask.needs}


class Members:
    """The workers and runs of one pool."""

    def __init__(self, registry: str) -> None:
        """Creates a pool of a registry with this identity, without workers."""
        self.workers: dict[str, WorkerMember] = {}
        self.runs: dict[str, RunMember] = {}
        self._registry: Final = registry

    # What is free.

    def free(self, session: str) -> Resources:
        """Returns what no run with a seat has taken of a worker."""
        left = self.workers[session].join.resources
        for run in self.runs.values():
            needs = run.needs
            for host, seat in run.seats.items():
                if seat == session and host in needs:
                    left = left.minus(needs[host])
        return left

    def reserved(self, session: str, *, of: str = "") -> str:
        """Words why no run but `of` may be given a seat at a worker; "" if all may."""
        worker = self.workers[session]
        if worker.slow:
            return "is silent"
        if worker.join.registry != self._registry:
            return "has not reported its runs yet"
        held = {*worker.join.runs, *(r for r, n in worker.listed.items() if n > worker.join.orders)}
        seated = {name for name, run in self.runs.items() if session in run.seats.values()}
        own = self._ids_of(of, worker)
        return "has hosts of a run that ends or has not reported" if held - seated - own else ""

    def _ids_of(self, run: str, worker: WorkerMember) -> set[str]:
        """Returns the ids by which a worker may know a run: its own, and those of its earlier processes,
        whose hosts the worker ends before it starts one of the run.
        """
        member = self.runs.get(run)
        if member is None:
            return {run}
        owners = dict(zip(worker.join.runs, worker.join.owners, strict=False))
        return {run} | {one for one in member.ask.earlier if owners.get(one) == member.member}

    def offers(self, of: str = "", *, whole: bool = False) -> list[Offer]:
        """Returns the workers that take hosts, with what is free there, or (`whole`) with all they have.

        `of` is a run whose own seats count too, on workers that are drained.
        """
        own = set(self.runs[of].seats.values()) if of in self.runs else set()
        found = []
        for session, worker in self.workers.items():
            if worker.is_in and (not worker.draining or session in own):
                total = worker.join.resources
                free = Resources() if self.reserved(session, of=of) else self.free(session)
                machine = worker.join.machine
                found.append(Offer(session, worker.name, machine, total if whole else free, total))
        return found

    # Seats.

    def claim(self, run: RunMember) -> tuple[m.Seat, ...]:
        """Enters the seats that a run uses and this registry did not give; returns those that others have.

        A seat at a worker that is not known, or has not reported, is neither entered nor refused yet.
        """
        taken, needs = [], run.needs
        run.claims = {}
        for seat in run.ask.seats:
            if seat.host not in needs or run.seats.get(seat.host) == seat.worker:
                continue
            worker = self.workers.get(seat.worker)
            if worker is None or not worker.is_in or worker.join.registry != self._registry:
                run.claims[seat.host] = seat.worker
                run.seats.pop(seat.host, None)
            elif self._may_claim(run, seat.worker, needs[seat.host]):
                run.seats[seat.host] = seat.worker
            else:
                taken.append(seat)
        return tuple(taken)

    def _may_claim(self, run: RunMember, session: str, need: Resources) -> bool:
        holds = run.ask.run in self.workers[session].join.runs
        reserved = self.reserved(session, of=run.ask.run) and not self.workers[session].slow
        return (holds or not reserved) and self.free(session).covers(need)

    def keep(self, run: RunMember) -> None:
        """Drops the seats of hosts that are not needed, and those at workers that are gone or avoided.

        A seat at an avoided worker is kept while the client uses it.
        """
        used = {(seat.host, seat.worker) for seat in run.ask.seats}
        needs, avoid = run.needs, set(run.ask.avoid)
        run.seats = {
            host: session
            for host, session in run.seats.items()
            if host in needs and session in self.workers and (session not in avoid or (host, session) in used)
        }

    def placed(self, run: RunMember) -> Placed:
        """Places the hosts of a run that have neither seat nor claim; nothing is entered."""
        name = run.ask.run
        needs = [need for need in run.ask.needs if need.host not in run.claims]
        offers = self.offers(of=name)
        wished = [offer for offer in offers if offer.session not in run.ask.avoid]
        used = set(run.seats.values())
        found = place(needs, run.seats, [one for one in offers if one in wished or one.session in used])
        return place(needs, run.seats, offers) if found.missing and len(wished) < len(offers) else found

    def validate(self) -> None:
        """Checks the invariants. Raises AssertionError."""
        names = [worker.name for worker in self.workers.values()]
        assert len(set(names)) == len(names), names
        for session, worker in self.workers.items():
            taken = Resources()
            for run in self.runs.values():
                needs = run.needs
                taken = sum((needs[h] for h, s in run.seats.items() if s == session and h in needs), taken)
            assert worker.join.resources.covers(taken), (worker.name, taken)
        for run in self.runs.values():
            assert not run.claims.keys() & run.seats.keys(), run.ask.title
