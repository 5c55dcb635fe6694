"""Machines with one fault each, as somebody might write them by mistake: each must be caught."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

import msgspec

from partita.engine.protocol import (
    ApplyOnArrival,
    DownpourCoordinator,
    LinkedPart,
    Membership,
    ParameterLinks,
    Shard,
)
from partita.engine.protocol.apply_on_arrival import _Part
from partita.engine.protocol.coordinator_effects import Restart
from partita.engine.protocol.directories import Directories
from partita.engine.protocol.events import Persist, Received, Replaced, Send
from partita.engine.protocol.host_lifecycle import Phase
from partita.engine.protocol.leases import WorkLeases
from partita.engine.protocol.membership import HeartbeatPolicy
from partita.engine.protocol.messages import (
    Begin,
    Directory,
    Failed,
    Fetch,
    Lease,
    Parameters,
    Push,
    PushRecord,
    Report,
    Saved,
)
from partita.engine.protocol.parameter_links import SavePushRecord
from partita.engine.protocol.shard_effects import ApplyGradient, ReceiveAgain
from tests.simulation.outcomes import Planted

LONG_LEASE = HeartbeatPolicy(heartbeat_s=0.69, dead_s=8.0)

# Shards.


class AcknowledgesWithoutApplying(ApplyOnArrival):
    def receive(self, event: Any) -> Any:
        effects = super().receive(event)
        return effects if self.version % 4 else [e for e in effects if not isinstance(e, ApplyGradient)]


class NoIncarnationInTheKey(ApplyOnArrival):
    def _account(self, part: _Part, settled: PushRecord) -> bool:
        lost = super()._account(part, msgspec.structs.replace(settled, incarnation=max(part.incarnation, 0)))
        part.incarnation = max(part.incarnation, settled.incarnation)
        return lost


class AnIncarnationGoesBack(ApplyOnArrival):
    def receive(self, event: Any) -> Any:
        part = self._parts.get(event.sender) if isinstance(event, Received) else None
        if part is not None and isinstance(event.message, Fetch) and event.incarnation < part.incarnation:
            part.incarnation, part.sequence, part.earlier = event.incarnation, -1, None
        return super().receive(event)


class RestoreForgetsWhatWasSeen(ApplyOnArrival):
    def __init__(self, own: Any, **kwargs: Any) -> None:
        super().__init__(own, **(kwargs | {"restored": replace(kwargs["restored"], seen={})}))


class WatermarkSavedTooEarly(ApplyOnArrival):
    def persist(self, checkpoint: int) -> Persist:
        order = super().persist(checkpoint)
        return replace(order, seen={part: (i, max(-1, s - 1)) for part, (i, s) in order.seen.items()})


class RestoreForgetsTheVersion(ApplyOnArrival):
    def __init__(self, own: Any, **kwargs: Any) -> None:
        super().__init__(own, **(kwargs | {"restored": replace(kwargs["restored"], version=0)}))


class NoFence(Shard):
    def holds_lease(self, now: float) -> bool:
        return not self.fenced


class LeaseFromWhenTheHeartbeatArrived(Shard):
    def _heartbeat(self, message: Any, now: float) -> Any:
        effects = super()._heartbeat(message, now)
        self._leased_until = now + self._lease_s
        return effects


class LeaseOutlivesTheVerdict(Shard):
    def __init__(self, own: Any, policy: Any, **kwargs: Any) -> None:
        super().__init__(own, policy, **(kwargs | {"heartbeats": LONG_LEASE}))


class AcknowledgesAfterTheLease(Shard):
    def may_send(self, message: Any, now: float) -> bool:
        return not self.fenced


class TakesAllThatWaitedAtOnce(Shard):
    """The lease may end while the first of them is handled."""

    def _heartbeat(self, message: Any, now: float) -> Any:
        effects = super()._heartbeat(message, now)
        waited = [effect.event for effect in effects if isinstance(effect, ReceiveAgain)]
        if not waited:
            return effects
        return [effect for event in waited for effect in self.policy.receive(event)]


class AppliesARepeat(ApplyOnArrival):
    def _push(self, event: Any, push: Any) -> Any:
        part = self._parts.get(event.sender)
        if part is not None and (part.incarnation, part.sequence) == (push.incarnation, push.sequence):
            part.sequence -= 1
        return super()._push(event, push)


class NeverAcknowledgesARepeat(ApplyOnArrival):
    def _push(self, event: Any, push: Any) -> Any:
        version = self.version
        effects = super()._push(event, push)
        return effects if self.version > version else []


class CountsNoLoss(ApplyOnArrival):
    def _account(self, part: _Part, settled: PushRecord) -> bool:
        lost = part.lost
        super()._account(part, settled)
        part.lost = lost
        return False


class CountsAPushTooFew(ApplyOnArrival):
    def _account(self, part: _Part, settled: PushRecord) -> bool:
        lost = super()._account(part, settled)
        part.lost -= lost
        return lost


class CountsNothingOfProcessesThatDied(ApplyOnArrival):
    def __init__(self, own: Any, **kwargs: Any) -> None:
        super().__init__(own, **(kwargs | {"acknowledged": {}}))

    def _fetch(self, event: Any, fetch: Fetch) -> Any:
        return super()._fetch(event, msgspec.structs.replace(fetch, earlier=()))


class CountsNothingAtItsStart(ApplyOnArrival):
    def __init__(self, own: Any, **kwargs: Any) -> None:
        super().__init__(own, **(kwargs | {"acknowledged": {}}))


class ReportsOneStepTooMany(ApplyOnArrival):
    def _fetch(self, event: Any, fetch: Fetch) -> Any:
        return [self._off(effect) for effect in super()._fetch(event, fetch)]

    by = 1

    def _off(self, effect: Any) -> Any:
        if not isinstance(effect.message, Parameters) or effect.message.earlier is None:
            return effect
        earlier = effect.message.earlier
        moved = msgspec.structs.replace(earlier, stop=max(0, earlier.stop + self.by * (earlier.stop > 0)))
        message = msgspec.structs.replace(effect.message, earlier=moved)
        return msgspec.structs.replace(effect, message=message)


class ReportsOneStepTooFew(ReportsOneStepTooMany):
    by = -1


class ReportsSavedBeforeItIs(Shard):
    def _save(self, checkpoint: int, now: float) -> Any:
        effects = super()._save(checkpoint, now)
        early = Saved(
            checkpoint, self.incarnation, self.version, f"{checkpoint}/{self.name}.{self.incarnation}", "hash"
        )
        return [*effects, *(Send("coordinator", early) for e in effects if isinstance(e, Persist))]


class ForgetsWhatItLostInItsFile(Shard):
    def _persisted(self, event: Any, now: float) -> Any:
        return [
            msgspec.structs.replace(e, message=msgspec.structs.replace(e.message, lost=0))
            if isinstance(e, Send) and isinstance(e.message, Saved)
            else e
            for e in super()._persisted(event, now)
        ]


# Parts.


class ARetryHasAFreshSequenceNumber(ParameterLinks):
    def _retry(self, now: float) -> Iterator[Any]:
        for effect in super()._retry(now):
            if isinstance(effect.message, Push):
                link = self._links[effect.to]
                assert link.push is not None
                link.push.message = msgspec.structs.replace(effect.message, sequence=link.sequences)
                link.sequences += 1
                effect = msgspec.structs.replace(effect, message=link.push.message)
            yield effect


class NeverRetries(ParameterLinks):
    def _retry(self, now: float) -> Iterator[Any]:
        return iter(())


class IgnoresReplacements(ParameterLinks):
    def _replaced(self, event: Replaced, now: float) -> Iterator[Any]:
        return iter(())


class DrainForgetsTheAccumulated(ParameterLinks):
    def drain(self, now: float) -> Iterator[Any]:
        for link in self._links.values():
            link.accumulated_from, link.is_due = None, False
        yield from super().drain(now)


class PushesOverAPushUnderWay(ParameterLinks):
    def computed(self, step: int, now: float) -> Iterator[Any]:
        for link in self._links.values():
            link.push = None
        yield from super().computed(step, now)


class InstallsInsideAStep(LinkedPart):
    def receive(self, event: Any, now: float) -> Any:
        effects = super().receive(event, now)
        inside = self._inside and isinstance(event, Received) and isinstance(event.message, Parameters)
        return [*effects, *(self.links.install() if inside else ())]


class PushesStepsAgain(ParameterLinks):
    def computed(self, step: int, now: float) -> Iterator[Any]:
        for link in self._links.values():
            link.held = 0
        yield from super().computed(step, now)


class PushesTheLastHeldStepAgain(ParameterLinks):
    def computed(self, step: int, now: float) -> Iterator[Any]:
        for link in self._links.values():
            link.held -= step == link.held - 1
        yield from super().computed(step, now)


class NotesNothing(ParameterLinks):
    def receive(self, event: Any, now: float) -> Any:
        return [effect for effect in super().receive(event, now) if not isinstance(effect, SavePushRecord)]


class NotesAPushTooFew(ParameterLinks):
    def receive(self, event: Any, now: float) -> Any:
        return [self._off(effect) for effect in super().receive(event, now)]

    def _off(self, effect: Any) -> Any:
        if not isinstance(effect, SavePushRecord):
            return effect
        return replace(effect, record=msgspec.structs.replace(effect.record, pushes=effect.record.pushes - 1))


class DoesNotInherit(ParameterLinks):
    def _inherit(self, link: Any, earlier: Any) -> Iterator[Any]:
        return iter(())


class _InstallsLess(ParameterLinks):
    lacks: ClassVar[tuple[str, ...]] = ()

    def _install(self, link: Any) -> Iterator[Any]:
        for effect in super()._install(link):
            yield replace(effect, unheld=tuple(name for name in effect.unheld if name not in self.lacks))


class ForgetsWhatIsInFlight(_InstallsLess):
    lacks = ("in_flight",)


class ForgetsWhatHasAccumulated(_InstallsLess):
    lacks = ("accumulated",)


class AppliesAgainWhatTheShardHas(ParameterLinks):
    def _install(self, link: Any) -> Iterator[Any]:
        for effect in super()._install(link):
            names = [name for name in effect.unheld if name != "in_flight"]
            yield replace(effect, unheld=("in_flight", *names))


class PushesBeforeItInstalls(ParameterLinks):
    def _push(self, link: Any, now: float) -> Iterator[Any]:
        staged, link.staged = link.staged, None
        yield from super()._push(link, now)
        link.staged = staged

    def validate(self) -> None:
        pass


class KeepsAStepThatIsTakenBack(ParameterLinks):
    def _take_back(self, link: Any, now: float) -> Iterator[Any]:
        yield next(super()._take_back(link, now))


class CountsItsOwnPushesAsStale(ParameterLinks):
    def _acknowledged(self, link: Any, message: Any, now: float) -> Iterator[Any]:
        if link.pushed_from is not None:
            link.pushed_from = replace(link.pushed_from, pushes=message.sequence)
        yield from super()._acknowledged(link, message, now)


# The coordinator.


class LaunchesTheSameIncarnationAgain(DownpourCoordinator):
    def _restart_shard(self, host: Any, reason: str, now: float) -> Any:
        effects = super()._restart_shard(host, reason, now)
        host.incarnation -= 1
        again = ((host.name, host.incarnation),)
        return [replace(e, hosts=again) if isinstance(e, Restart) else e for e in effects]


class RestoresWhatWasNeverCommitted(DownpourCoordinator):
    def _restart_shard(self, host: Any, reason: str, now: float) -> Any:
        under_way = self._checkpoints.round
        effects = super()._restart_shard(host, reason, now)
        if under_way is None:
            return effects
        newest = under_way.checkpoint
        return [replace(e, checkpoint=newest) if isinstance(e, Restart) else e for e in effects]


class ARoundOutlivesAShard(DownpourCoordinator):
    def _restart_shard(self, host: Any, reason: str, now: float) -> Any:
        under_way = self._checkpoints.round
        effects = super()._restart_shard(host, reason, now)
        self._checkpoints.round = under_way
        if under_way is not None:
            under_way._incarnations[host.name] = host.incarnation
        return effects


class DeclaresDeathBeforeTheLeaseIsOver(DownpourCoordinator):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._membership = Membership(HeartbeatPolicy(heartbeat_s=0.69, suspect_s=1.5, dead_s=2.0))  # type: ignore[misc]


class BeginsAtTheReportedStep(DownpourCoordinator):
    def _begin(self, replica: Any, now: float) -> Any:
        for part in replica.parts:
            part.continues = replica.steps_done if part.continues is not None else None
        return super()._begin(replica, now)


class BeginsWithoutAskingTheShards(DownpourCoordinator):
    def _begin(self, replica: Any, now: float) -> Any:
        for part in replica.parts:
            part.is_informed = True
        return super()._begin(replica, now)


class BeginsOneStepTooFar(DownpourCoordinator):
    def receive(self, event: Any, now: float) -> Any:
        return [
            msgspec.structs.replace(
                e, message=msgspec.structs.replace(e.message, step=min(e.message.step + 1, e.message.stop))
            )
            if isinstance(e, Send) and isinstance(e.message, Begin) and e.message.step > 0
            else e
            for e in super().receive(event, now)
        ]


class _LeasesAUnitTwice(WorkLeases):
    def grant(self, replica: int, most: int) -> Any:
        lease = super().grant(replica, most)
        if lease is None or lease.start % 4 != 3:
            return lease
        self._holders[replica].open[-1] = again = Lease(lease.step, lease.start - 1, lease.stop - 1)
        return again

    def complete(self, replica: int, below: int) -> None:
        with contextlib.suppress(AssertionError):
            super().complete(replica, below)

    def validate(self) -> None:
        pass


class LeasesAUnitTwice(DownpourCoordinator):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._work = _LeasesAUnitTwice(kwargs["units"], len(self._before), done=kwargs["done"])  # type: ignore[misc]


class _ForgetsAUnit(WorkLeases):
    def grant(self, replica: int, most: int) -> Any:
        lease = super().grant(replica, most)
        if lease is not None and lease.stop == self.units > 2:
            self._holders[replica].open[-1] = lease = Lease(lease.step, lease.start, lease.stop - 1)
            self._holders[replica].next -= 1
        return lease

    def validate(self) -> None:
        pass


class ForgetsAUnit(DownpourCoordinator):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._work = _ForgetsAUnit(kwargs["units"], len(self._before), done=kwargs["done"])  # type: ignore[misc]


class CountsAStepAsDoneWhenItIsReported(DownpourCoordinator):
    """A checkpoint may lack its gradient, and whoever goes on from there would leave it out."""

    def _report(self, host: Any, replica: Any, report: Any, now: float) -> Any:
        return super()._report(host, replica, msgspec.structs.replace(report, held=report.step), now)


class LeasesAgainWhatADeadReplicaHad(DownpourCoordinator):
    """Its next process has other units under the numbers of steps that shards may hold already."""

    def _restart_replica(self, replica: Any, reason: str, now: float) -> Any:
        first = self._work.first_open(replica.index)
        self._work.give_back(replica.index)
        self._work._holders[replica.index].next = first
        return super()._restart_replica(replica, reason, now)


class _UsesNumbersAgain(WorkLeases):
    def give_back(self, replica: int) -> int:
        first = self.first_open(replica)
        units = super().give_back(replica)
        self._holders[replica].next = first
        return units


class UsesTheNumbersOfWhatIsGivenBackAgain(DownpourCoordinator):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._work = _UsesNumbersAgain(kwargs["units"], len(self._before), done=kwargs["done"])  # type: ignore[misc]


class SeatsAReplicaTwice(DownpourCoordinator):
    def _end_host(self, host: Any, state: Any, now: float) -> None:
        leave, self.seats.leave = self.seats.leave, lambda replica: None  # type: ignore[method-assign]
        super()._end_host(host, state, now)
        self.seats.leave = leave  # type: ignore[method-assign]


class AsksForMoreOnce(LinkedPart):
    def _tick(self, now: float) -> Any:
        for effect in super()._tick(now):
            if not (isinstance(effect, Send) and isinstance(effect.message, Report)):
                yield effect


class HasAnotherUnitAfterAnOrder(LinkedPart):
    def _begin(self, begin: Any) -> Any:
        if self.step >= 0 and begin.leases:
            self.leases._leases = []
            first = begin.leases[0]
            begin = msgspec.structs.replace(begin, leases=(Lease(self.step, first.start, first.stop),))
        return super()._begin(begin)


class SendsTheDirectoryOnce(DownpourCoordinator):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._directories.repeat = lambda now, retry_s: []  # type: ignore[method-assign]


class RepeatsOnlyTheLastChange(DownpourCoordinator):
    """What an earlier one held, which may be lost, too, is in no later directory."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._directories = _AsIfAllWereThere(self._registry)  # type: ignore[misc]


class _AsIfAllWereThere(Directories):
    def _send(self, receiver: Any, since: int, now: float) -> Any:
        return super()._send(receiver, max(since, receiver.sent - 1), now)


class SendsAChangeAsIfItWereAll(DownpourCoordinator):
    def receive(self, event: Any, now: float) -> Any:
        return [
            msgspec.structs.replace(e, message=Directory(e.message.peers, e.message.revision))
            if isinstance(e, Send) and isinstance(e.message, Directory)
            else e
            for e in super().receive(event, now)
        ]


class SendsSaveOnce(DownpourCoordinator):
    def _begin_round(self, now: float) -> Any:
        effects = super()._begin_round(now)
        if self._checkpoints.round is not None:
            self._checkpoints.round._asked_at = float("inf")
        return effects


class TheLastRoundIsAnOlderOne(DownpourCoordinator):
    def _begin_round(self, now: float) -> Any:
        if self._checkpoints.round is not None and self.phase is Phase.FINISHING:
            self._round_is_last = True
            return []
        return super()._begin_round(now)


class CountsALossTwice(DownpourCoordinator):
    def _restart_shard(self, host: Any, reason: str, now: float) -> Any:
        found = dict(self._checkpoints._since.get(host.name, {}))
        effects = super()._restart_shard(host, reason, now)
        self._checkpoints._at_start[host.name] += sum(found.values())
        return effects


class WaitsForAnswersForEver(DownpourCoordinator):
    def _watch_answers(self, now: float) -> Any:
        return []


class TakesAnErrorForADeath(DownpourCoordinator):
    def _count_failure(self, host: Any, failed: Failed, incarnation: int) -> Any:
        return []


FAULTS = [
    Planted(AcknowledgesWithoutApplying, "I2", 20),
    Planted(NoIncarnationInTheKey, "I2 S5", 600, at=38),
    Planted(AnIncarnationGoesBack, "I1 I2 I8", 1000, at=432),
    Planted(RestoreForgetsWhatWasSeen, "I1 I2", 300, at=22),
    Planted(WatermarkSavedTooEarly, "I1 I2", 300, at=22),
    Planted(RestoreForgetsTheVersion, "I1 I3", 300, at=22),
    Planted(NoFence, "I4 I1", 1000, at=499),
    Planted(LeaseFromWhenTheHeartbeatArrived, "I4", 2000, at=305),
    Planted(LeaseOutlivesTheVerdict, "I4", 1000, at=305),
    Planted(AcknowledgesAfterTheLease, "I4", 2000, at=1860),
    Planted(TakesAllThatWaitedAtOnce, "I4", 2000, at=185),
    Planted(AppliesARepeat, "I1", 100, at=1),
    Planted(NeverAcknowledgesARepeat, "I8", 100, at=1),
    Planted(CountsNoLoss, "I2", 150, at=22),
    Planted(CountsAPushTooFew, "I2", 150, at=22),
    Planted(CountsNothingOfProcessesThatDied, "I2", 1000, at=27),
    Planted(CountsNothingAtItsStart, "I2", 2000, at=88),
    Planted(ReportsOneStepTooMany, "I2 I8", 600, at=38),
    Planted(ReportsOneStepTooFew, "I1", 600, at=1),
    Planted(PushesStepsAgain, "I1", 300, at=1),
    Planted(PushesTheLastHeldStepAgain, "I1", 300, at=1),
    Planted(NotesNothing, "I1 I2 I14", 1000, at=124),
    Planted(NotesAPushTooFew, "I2", 300, at=17),
    Planted(DoesNotInherit, "I1 I2", 600, at=1),
    Planted(BeginsAtTheReportedStep, "I2", 300, at=1),
    Planted(BeginsWithoutAskingTheShards, "I2 I8", 1500, at=19),
    Planted(ReportsSavedBeforeItIs, "I5", 20),
    Planted(ForgetsWhatItLostInItsFile, "I2", 1000, at=124),
    Planted(ARetryHasAFreshSequenceNumber, "I1", 100, at=1),
    Planted(NeverRetries, "I8", 700, at=187),
    Planted(IgnoresReplacements, "I2 I8", 2500, at=524),
    Planted(DrainForgetsTheAccumulated, "I2", 20, at=1),
    Planted(PushesOverAPushUnderWay, "I1 I2", 100, at=1),
    Planted(InstallsInsideAStep, "I3", 20, at=1),
    Planted(ForgetsWhatIsInFlight, "I14", 100, at=1),
    Planted(ForgetsWhatHasAccumulated, "I14", 100, at=1),
    Planted(AppliesAgainWhatTheShardHas, "I14", 100, at=6),
    Planted(PushesBeforeItInstalls, "I14", 100, at=1),
    Planted(KeepsAStepThatIsTakenBack, "I14", 300, at=1),
    Planted(CountsItsOwnPushesAsStale, "I14", 100, at=1),
    Planted(LaunchesTheSameIncarnationAgain, "I4", 20, at=2),
    Planted(RestoresWhatWasNeverCommitted, "I5", 20, at=1),
    Planted(ARoundOutlivesAShard, "I5", 400, at=43),
    Planted(DeclaresDeathBeforeTheLeaseIsOver, "I4", 300, at=33),
    Planted(BeginsOneStepTooFar, "I2 I8", 100, at=17),
    Planted(LeasesAUnitTwice, "I15 I8", 100),
    Planted(ForgetsAUnit, "I15 I8", 100),
    Planted(CountsAStepAsDoneWhenItIsReported, "I2", 300, at=1),
    Planted(LeasesAgainWhatADeadReplicaHad, "I15", 600, at=6),
    Planted(UsesTheNumbersOfWhatIsGivenBackAgain, "I15 I2 I8", 600, at=270),
    Planted(SeatsAReplicaTwice, "validate", 100, at=1),
    Planted(AsksForMoreOnce, "I8", 300, at=56),
    Planted(HasAnotherUnitAfterAnOrder, "I15", 300),
    Planted(SendsTheDirectoryOnce, "I8", 100, at=22),
    Planted(RepeatsOnlyTheLastChange, "I8", 1000, at=31),
    Planted(SendsAChangeAsIfItWereAll, "I8", 1000, at=15),
    Planted(SendsSaveOnce, "I8", 600, at=88),
    Planted(TheLastRoundIsAnOlderOne, "I2 I15", 100, at=5),
    Planted(CountsALossTwice, "I2", 1000, at=124),
    Planted(TakesAnErrorForADeath, "I13", 300, at=23),
    Planted(WaitsForAnswersForEver, "I8", 300, at=19),
]
"""Found on 2,500 seeds each; the limits leave some room, because a change of the draw moves every seed."""
