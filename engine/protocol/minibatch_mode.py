"""Replicas that share minibatches which the coordinator has: each is leased to one, whose parts answer it.

A replica has a minibatch waiting while it plays one. When it dies, it is started again, and what it had goes
to the next replica that has room. Each minibatch counts once, as all parts of one replica answer it.
"""

from __future__ import annotations

from typing import Any, Final

from typing_extensions import override

from partita.engine.protocol import messages as m
from partita.engine.protocol.coordinator_effects import CoordinatorEffect
from partita.engine.protocol.events import Send, Span
from partita.engine.protocol.host_lifecycle import Phase
from partita.engine.protocol.host_registry import HostRecord, ReplicaRecord
from partita.engine.protocol.names import machine_of
from partita.engine.protocol.request_mode import Answered, RequestMode
from partita.engine.protocol.session_messages import Load, Loaded, Play, Played
from partita.engine.protocol.supervision import Supervision
from partita.engine.protocol.work_book import Holder, WorkBook

AHEAD: Final = 2
"""Minibatches that a replica has at a time: one that it plays, and the next one."""


class MinibatchMode(RequestMode):
    """The minibatches of one run. A unit is one of them."""

    works = restarts = is_begun = True

    def __init__(self, timeout_s: float, collect: tuple[str, ...] = ()) -> None:
        """No minibatch yet.

        Args:
            timeout_s: seconds without a sign of life for the start of a host.
            collect: what is to be collected, see `Play`.
        """
        super().__init__(timeout_s)
        self._collect: Final = collect
        self._work: Final = WorkBook[Holder]()
        self._first: Final[dict[int, int]] = {}  # the first step of the processes of a replica that has begun
        self._loaded: Final[set[str]] = set()  # parts that have their parameters
        self._waiting: Final[dict[int, ReplicaRecord]] = {}  # ready, and not begun

    @override
    def attach(self, run: Supervision) -> None:
        super().attach(run)
        self._work.holders.update((replica.index, Holder()) for replica in run.registry.replicas)

    @property
    @override
    def steps_done(self) -> tuple[int, ...]:
        return tuple(holder.done for holder in self._work.holders.values())

    @override
    def extend(self) -> bool:
        return self._work.extend(-(-self.run.until // self.run.outline.batch))

    @property
    @override
    def is_complete(self) -> bool:
        return self._work.done.size == self._work.units

    # Replicas.

    @override
    def joined(self, replica: ReplicaRecord, now: float) -> list[CoordinatorEffect]:
        """Sends the parts their parameters."""
        self._waiting[replica.index], replica.progress_at = replica, now
        return [Send(part.name, Load(), Span("parameters", 0, 0)) for part in replica.parts]

    @override
    def settle(self, now: float) -> list[CoordinatorEffect]:
        """Begins with replicas whose parts know one another and have their parameters."""
        effects: list[CoordinatorEffect] = []
        for index, replica in tuple(self._waiting.items()):
            if all(part.name in self._loaded and part.informed == part.sent > 0 for part in replica.parts):
                del self._waiting[index]
                self._first[index] = self._work.holders[index].next
                effects += self._lease(replica, now)
        return effects

    def _lease(self, replica: ReplicaRecord, now: float) -> list[CoordinatorEffect]:
        """Leases minibatches to a replica that has room for them."""
        effects: list[CoordinatorEffect] = []
        index, outline = replica.index, self.run.outline
        holder = self._work.holders[index]
        if not holder.open:
            replica.progress_at = now
        while len(holder.open) < AHEAD and (held := self._work.next_unit(index)) is not None:
            held.unfinished = {*range(len(replica.parts))}
            examples = min(outline.batch, self.run.until - held.start * outline.batch)
            play = Play(held.step - self._first[index], examples, self._collect)
            effects += [
                Send(part.name, play, Span("minibatch", held.start, held.stop)) for part in replica.parts
            ]
        return effects

    @override
    def receive(self, host: HostRecord, message: object, now: float) -> list[Any]:
        replica = self.run.registry.replica_of(host)
        match message:
            case Loaded():
                self._loaded.add(host.name)
            case Played() if replica is not None and replica.index in self._first:
                return self._played(host, replica, message, now)
            case m.SetUpProgress():
                if replica is not None:
                    replica.progress_at = now
                return super().receive(host, message, now)
        return []

    def _played(self, host: HostRecord, replica: ReplicaRecord, played: Played, now: float) -> list[Any]:
        index, machine = replica.index, machine_of(host.name)
        held = self._work.holders[index].open.get(self._first[index] + played.step)
        if held is None or machine not in held.unfinished:
            return []
        held.unfinished.remove(machine)
        host.deaths, replica.progress_at = 0, now
        effects: list[Any] = [Answered(host.name, played, held.start)]
        if not held.unfinished:
            self._work.complete(index, held.end)
            effects += self._lease(replica, now) + self.run.finish_if_complete(now)
        return effects

    @override
    def restart_replica(self, replica: ReplicaRecord, reason: str, now: float) -> list[CoordinatorEffect]:
        index = replica.index
        self._first.pop(index, None)
        self._waiting.pop(index, None)
        self._loaded.difference_update(part.name for part in replica.parts)
        self._work.give_back(index)
        effects = self.restarted(replica, f"replica {index} is started again", reason, now)
        for other in self._first:
            effects += self._lease(self.run.registry.replicas[other], now)
        return effects

    @override
    def watch(self, now: float) -> list[CoordinatorEffect]:
        """Looks for hosts that do not start, and for replicas that do not answer."""
        effects = super().watch(now)
        for replica in self.run.registry.replicas:
            waits = replica.index in self._waiting or bool(self._work.holders[replica.index].open)
            if waits and self.run.phase is Phase.RUNNING and now - replica.progress_at >= replica.stall_s:
                effects += self.run.restart_stalled(replica, "answer", now)
        return effects

    @override
    def validate(self) -> None:
        """Checks the invariants. Raises AssertionError."""
        self._work.validate()
        for index, holder in self._work.holders.items():
            assert index in self._first or not holder.open, holder
            assert len(holder.open) == AHEAD or index not in self._first or not self._work.free, holder
            assert all(held.unfinished for held in holder.open.values()), holder
