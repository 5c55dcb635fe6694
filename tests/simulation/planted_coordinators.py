"""Coordinators of Downpour with one fault each, and what goes with their leases and directories."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

import msgspec

from partita.engine.protocol import (
    Coordinator,
    LeasedMode,
    Membership,
    Part,
)
from partita.engine.protocol.coordinator_effects import Commit, Restart
from partita.engine.protocol.directories import Directories
from partita.engine.protocol.events import Send
from partita.engine.protocol.host_lifecycle import Phase
from partita.engine.protocol.leased_work import LeasedWork
from partita.engine.protocol.membership import HeartbeatPolicy
from partita.engine.protocol.messages import (
    Begin,
    Directory,
    Failed,
    Lease,
    Report,
)
from partita.engine.protocol.work_book import WorkBook
from tests.simulation.outcomes import Planted


class LaunchesTheSameIncarnationAgain(Coordinator):
    def _restart_shard(self, host: Any, reason: str, now: float) -> Any:
        effects = super()._restart_shard(host, reason, now)
        host.incarnation -= 1
        again = ((host.name, host.incarnation),)
        return [replace(e, hosts=again) if isinstance(e, Restart) else e for e in effects]


class RestoresWhatWasNeverCommitted(Coordinator):
    def _restart_shard(self, host: Any, reason: str, now: float) -> Any:
        under_way = self.checkpoints.round
        effects = super()._restart_shard(host, reason, now)
        if under_way is None:
            return effects
        newest = under_way.checkpoint
        return [replace(e, checkpoint=newest) if isinstance(e, Restart) else e for e in effects]


class ARoundOutlivesAShard(Coordinator):
    def _restart_shard(self, host: Any, reason: str, now: float) -> Any:
        under_way = self.checkpoints.round
        effects = super()._restart_shard(host, reason, now)
        self.checkpoints.round = under_way
        if under_way is not None:
            under_way._incarnations[host.name] = host.incarnation
        return effects


class DeclaresDeathBeforeTheLeaseIsOver(Coordinator):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._membership = Membership(HeartbeatPolicy(heartbeat_s=0.69, suspect_s=1.5, dead_s=2.0))  # type: ignore[misc]


class BeginsAtTheReportedStep(LeasedMode):
    def _begin(self, replica: Any, now: float) -> Any:
        for part in replica.parts:
            part.continues = replica.steps_done if part.continues is not None else None
        return super()._begin(replica, now)


class BeginsWithoutAskingTheShards(LeasedMode):
    def _begin(self, replica: Any, now: float) -> Any:
        for part in replica.parts:
            part.is_informed = True
        return super()._begin(replica, now)


class BeginsOneStepTooFar(Coordinator):
    def receive(self, event: Any, now: float) -> Any:
        return [
            msgspec.structs.replace(
                e, message=msgspec.structs.replace(e.message, step=min(e.message.step + 1, e.message.stop))
            )
            if isinstance(e, Send) and isinstance(e.message, Begin) and e.message.step > 0
            else e
            for e in super().receive(event, now)
        ]


def _with_book(kind: type, mode: LeasedMode) -> None:
    """Gives a mode that has just begun a book with a fault."""
    book = kind(mode._done)
    book.holders.update(mode._work.holders)
    mode._work = book


class _LeasesAUnitTwice(WorkBook):  # type: ignore[type-arg]
    def grant(self, replica: int, most: int) -> Any:
        held = super().grant(replica, most)
        if held is not None and held.start % 4 == 3:
            held.start, held.stop = held.start - 1, held.stop - 1
        return held

    def complete(self, replica: int, below: int) -> None:
        with contextlib.suppress(AssertionError):
            super().complete(replica, below)

    def validate(self, *, once: bool = True) -> None:
        pass


class LeasesAUnitTwice(LeasedMode):
    def attach(self, run: Any) -> None:
        super().attach(run)
        _with_book(_LeasesAUnitTwice, self)


class _ForgetsAUnit(WorkBook):  # type: ignore[type-arg]
    def grant(self, replica: int, most: int) -> Any:
        held = super().grant(replica, most)
        if held is not None and held.stop == self.units > 2:
            held.stop -= 1
            self.holders[replica].next -= 1
        return held

    def validate(self, *, once: bool = True) -> None:
        pass


class ForgetsAUnit(LeasedMode):
    def attach(self, run: Any) -> None:
        super().attach(run)
        _with_book(_ForgetsAUnit, self)


class LeasesToAReplicaWithoutAPart(LeasedMode):
    """What a replica that leaves gives back, after a part of another one has ended with its work done."""

    @staticmethod
    def _can_work(replica: Any) -> bool:
        return True


class CountsAStepAsDoneWhenItIsReported(LeasedMode):
    """A checkpoint may lack its gradient, and whoever goes on from there would leave it out."""

    def _report(self, host: Any, replica: Any, report: Any, now: float) -> Any:
        return super()._report(host, replica, msgspec.structs.replace(report, held=report.step), now)


class LeasesAgainWhatADeadReplicaHad(LeasedMode):
    """Its next process has other units under the numbers of steps that shards may hold already."""

    def restart_replica(self, replica: Any, reason: str, now: float) -> Any:
        holder = self._work.holders[replica.index]
        first = holder.first_open
        self._work.give_back(replica.index)
        holder.next = first
        return super().restart_replica(replica, reason, now)


class _UsesNumbersAgain(WorkBook):  # type: ignore[type-arg]
    def give_back(self, replica: int) -> int:
        first = self.holders[replica].first_open
        units = super().give_back(replica)
        self.holders[replica].next = first
        return units


class UsesTheNumbersOfWhatIsGivenBackAgain(LeasedMode):
    def attach(self, run: Any) -> None:
        super().attach(run)
        _with_book(_UsesNumbersAgain, self)


class SeatsAReplicaTwice(Coordinator):
    def _end_host(self, host: Any, state: Any, now: float) -> None:
        leave, self.seats.leave = self.seats.leave, lambda replica: None  # type: ignore[method-assign]
        super()._end_host(host, state, now)
        self.seats.leave = leave  # type: ignore[method-assign]


class AsksForMoreOnce(Part):
    def _tick(self, now: float) -> Any:
        for effect in super()._tick(now):
            if not (isinstance(effect, Send) and isinstance(effect.message, Report)):
                yield effect


class HasAnotherUnitAfterAnOrder(LeasedWork):
    def _begin(self, begin: Any, now: float) -> Any:
        if self.step >= 0 and begin.leases:
            self.leases._leases = []
            first = begin.leases[0]
            begin = msgspec.structs.replace(begin, leases=(Lease(self.step, first.start, first.stop),))
        return super()._begin(begin, now)


class SendsTheDirectoryOnce(Coordinator):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.directories.repeat = lambda now, retry_s: []  # type: ignore[method-assign]


class RepeatsOnlyTheLastChange(Coordinator):
    """What an earlier one held, which may be lost, too, is in no later directory."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.directories = _AsIfAllWereThere(self.registry)  # type: ignore[misc]


class _AsIfAllWereThere(Directories):
    def _send(self, receiver: Any, since: int, now: float) -> Any:
        return super()._send(receiver, max(since, receiver.sent - 1), now)


class SendsAChangeAsIfItWereAll(Coordinator):
    def receive(self, event: Any, now: float) -> Any:
        return [
            msgspec.structs.replace(e, message=Directory(e.message.peers, e.message.revision))
            if isinstance(e, Send) and isinstance(e.message, Directory)
            else e
            for e in super().receive(event, now)
        ]


class SendsSaveOnce(LeasedMode):
    def begin_round(self, now: float) -> Any:
        effects = super().begin_round(now)
        if self.run.checkpoints.round is not None:
            self.run.checkpoints.round._asked_at = float("inf")
        return effects


class TheLastRoundIsAnOlderOne(LeasedMode):
    def begin_round(self, now: float) -> Any:
        if self.run.checkpoints.round is not None and self.run.phase is Phase.FINISHING:
            self.run.round_is_whole = True
            return []
        return super().begin_round(now)


class CountsALossTwice(Coordinator):
    def _restart_shard(self, host: Any, reason: str, now: float) -> Any:
        found = dict(self.checkpoints._since.get(host.name, {}))
        effects = super()._restart_shard(host, reason, now)
        self.checkpoints._at_start[host.name] += sum(found.values())
        return effects


class LeavesAManifestThatCountsTooFew(LeasedMode):
    def receive(self, host: Any, message: Any, now: float) -> Any:
        return [e for e in super().receive(host, message, now) if not isinstance(e, Commit)]


class WaitsForAnswersForEver(Coordinator):
    def _watch_answers(self, now: float) -> Any:
        return []


class TakesAnErrorForADeath(Coordinator):
    def _count_failure(self, host: Any, failed: Failed, incarnation: int) -> Any:
        return []


COORDINATOR_FAULTS = [
    Planted(BeginsAtTheReportedStep, "I2", 300, at=1),
    Planted(BeginsWithoutAskingTheShards, "I2 I8", 1500, at=33),
    Planted(LaunchesTheSameIncarnationAgain, "I4", 20, at=2),
    Planted(RestoresWhatWasNeverCommitted, "I5", 20, at=1),
    Planted(ARoundOutlivesAShard, "I5", 400, at=71),
    Planted(DeclaresDeathBeforeTheLeaseIsOver, "I4", 300, at=33),
    Planted(BeginsOneStepTooFar, "I2 I8", 100, at=29),
    Planted(LeasesAUnitTwice, "I15 I8", 100),
    Planted(ForgetsAUnit, "I15 I8", 100),
    Planted(LeasesToAReplicaWithoutAPart, "I8", 2000, at=40_768),
    Planted(CountsAStepAsDoneWhenItIsReported, "I2", 300, at=1),
    Planted(LeasesAgainWhatADeadReplicaHad, "I15", 600, at=6),
    Planted(UsesTheNumbersOfWhatIsGivenBackAgain, "I15 I2 I8", 600, at=140),
    Planted(SeatsAReplicaTwice, "validate", 100, at=1),
    Planted(AsksForMoreOnce, "I8", 1000, at=499),
    Planted(HasAnotherUnitAfterAnOrder, "I15", 300),
    Planted(SendsTheDirectoryOnce, "I8", 100, at=22),
    Planted(RepeatsOnlyTheLastChange, "I8", 1000, at=22),
    Planted(SendsAChangeAsIfItWereAll, "I8", 1000, at=15),
    Planted(SendsSaveOnce, "I8", 600, at=88),
    Planted(TheLastRoundIsAnOlderOne, "I2 I15", 100, at=5),
    Planted(CountsALossTwice, "I2", 1000, at=29),
    Planted(LeavesAManifestThatCountsTooFew, "I2", 4000, at=1313),
    Planted(TakesAnErrorForADeath, "I13", 300, at=98),
    Planted(WaitsForAnswersForEver, "I8", 300, at=22),
]
"""Found as those of shards and parts."""
