"""Machines with one fault each, as somebody might write them by mistake: each must be caught."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

import msgspec

from partita.engine.protocol import (
    ApplyOnArrival,
    ParameterLinks,
    Part,
    Shard,
)
from partita.engine.protocol.apply_on_arrival import _Stream
from partita.engine.protocol.checkpoint_messages import Saved
from partita.engine.protocol.events import Persist, Received, Replaced, Send, stream_of
from partita.engine.protocol.file_messages import PushRecord
from partita.engine.protocol.link import Install, SwapBuffers
from partita.engine.protocol.membership import HeartbeatPolicy
from partita.engine.protocol.messages import Fetch, Parameters, Push
from partita.engine.protocol.parameter_links import SavePushRecord
from partita.engine.protocol.ranges import Ranges
from partita.engine.protocol.shard_effects import ApplyGradient, ReceiveAgain
from tests.simulation.outcomes import Planted
from tests.simulation.planted_coordinators import COORDINATOR_FAULTS
from tests.simulation.planted_resuming import RESUMING_FAULTS
from tests.simulation.planted_stops import STOP_FAULTS

LONG_LEASE = HeartbeatPolicy(heartbeat_s=0.69, dead_s=8.0)

# Shards.


class AcknowledgesWithoutApplying(ApplyOnArrival):
    def receive(self, event: Any) -> Any:
        effects = super().receive(event)
        return effects if self.version % 4 else [e for e in effects if not isinstance(e, ApplyGradient)]


class NoIncarnationInTheKey(ApplyOnArrival):
    def _account(self, part: _Stream, settled: PushRecord) -> bool:
        lost = super()._account(part, msgspec.structs.replace(settled, incarnation=max(part.incarnation, 0)))
        part.incarnation = max(part.incarnation, settled.incarnation)
        return lost


class AnIncarnationGoesBack(ApplyOnArrival):
    def receive(self, event: Any) -> Any:
        part = self._streams.get(stream_of(event)) if isinstance(event, Received) else None
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
        part = self._streams.get(stream_of(event))
        if part is not None and (part.incarnation, part.sequence) == (push.incarnation, push.sequence):
            part.sequence -= 1
        return super()._push(event, push)


class NeverAcknowledgesARepeat(ApplyOnArrival):
    def _push(self, event: Any, push: Any) -> Any:
        version = self.version
        effects = super()._push(event, push)
        return effects if self.version > version else []


class CountsNoLoss(ApplyOnArrival):
    def _account(self, part: _Stream, settled: PushRecord) -> bool:
        lost = part.lost
        super()._account(part, settled)
        part.lost = lost
        return False


class CountsAPushTooFew(ApplyOnArrival):
    def _account(self, part: _Stream, settled: PushRecord) -> bool:
        lost = super()._account(part, settled)
        part.lost -= lost
        return lost


class CountsNothingOfProcessesThatDied(ApplyOnArrival):
    def learn(self, acknowledged: Any) -> None:
        super().learn({})

    def _fetch(self, event: Any, fetch: Fetch) -> Any:
        return super()._fetch(event, msgspec.structs.replace(fetch, earlier=()))


class CountsNothingAtItsStart(ApplyOnArrival):
    def learn(self, acknowledged: Any) -> None:
        super().learn({})


class ForgetsALossThatThePartDoesNotKnow(ApplyOnArrival):
    """Its last acknowledgement was received by a process that had been replaced, and noted on disk."""

    def learn(self, acknowledged: Any) -> None:
        super().learn(acknowledged)
        self._noted = dict(acknowledged)

    def _fetch(self, event: Any, fetch: Fetch) -> Any:
        known = {one.incarnation: one.pushes for one in fetch.earlier}
        for record in self._noted.pop(event.sender, ()):
            unknown = record.pushes - known.get(record.incarnation, 0)
            if record.incarnation < event.incarnation and unknown > 0:
                part = self._streams[stream_of(event)]
                part.lost = max(0, part.lost - unknown)
        return super()._fetch(event, fetch)


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
    def receive(self, event: Any, now: float) -> Any:
        effects = super().receive(event, now)
        files = [
            (e, f"{e.checkpoint}/{self.name}.{e.incarnation}") for e in effects if isinstance(e, Persist)
        ]
        saved = [Saved(e.checkpoint, e.incarnation, e.version, file, "") for e, file in files]
        return [*(Send("coordinator", message) for message in saved), *effects]


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
            link.accumulated_from, link.units, link.is_due = None, Ranges(), False
        yield from super().drain(now)


class PushesOverAPushUnderWay(ParameterLinks):
    def computed(self, step: int, unit: int, now: float, **more: Any) -> Iterator[Any]:
        for link in self._links.values():
            link.push = None
        yield from super().computed(step, unit, now, **more)


class InstallsInsideAStep(Part):
    def receive(self, event: Any, now: float) -> Any:
        effects = super().receive(event, now)
        inside = self.work.computing is not None and isinstance(event, Received)
        installs = inside and isinstance(event.message, Parameters)
        return [*effects, *(self.work.others[0].install() if installs else ())]


class PushesStepsAgain(ParameterLinks):
    def computed(self, step: int, unit: int, now: float, **more: Any) -> Iterator[Any]:
        for link in self._links.values():
            link.held, link.has = 0, Ranges()
        yield from super().computed(step, unit, now, **more)


class PushesTheLastHeldStepAgain(ParameterLinks):
    def computed(self, step: int, unit: int, now: float, **more: Any) -> Iterator[Any]:
        for link in self._links.values():
            link.held -= step == link.held - 1
            link.has.discard(unit, unit + 1)
        yield from super().computed(step, unit, now, **more)


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


def _without(effect: Install, lacks: tuple[str, ...]) -> Install:
    """The effect without the gradients of these vectors, nor their factors of the learning rate."""
    both = zip(effect.unheld, effect.scales, strict=True)
    held = [(name, scale) for name, scale in both if name not in lacks]
    return replace(effect, unheld=tuple(name for name, _ in held), scales=tuple(scale for _, scale in held))


class _InstallsLess(ParameterLinks):
    lacks: ClassVar[tuple[str, ...]] = ()

    def _install(self, link: Any) -> Iterator[Any]:
        for effect in super()._install(link):
            yield _without(effect, self.lacks)


class ForgetsWhatIsInFlight(_InstallsLess):
    lacks = ("in_flight",)


class ForgetsWhatHasAccumulated(_InstallsLess):
    lacks = ("accumulated",)


class AppliesAgainWhatTheShardHas(ParameterLinks):
    def _install(self, link: Any) -> Iterator[Any]:
        for effect in super()._install(link):
            rest = _without(effect, ("in_flight",))
            yield replace(rest, unheld=("in_flight", *rest.unheld), scales=(link.pushed_scale, *rest.scales))


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


class SendsTheRestInItsPlace(ParameterLinks):
    """A message is written twice before it is sent: the second one has what the first one lacked."""

    def _push(self, link: Any, now: float) -> Iterator[Any]:
        for effect in super()._push(link, now):
            yield effect
            if isinstance(effect, SwapBuffers):
                yield effect


FAULTS = [
    Planted(AcknowledgesWithoutApplying, "I2", 20),
    Planted(NoIncarnationInTheKey, "I2 S5", 600, at=38),
    Planted(AnIncarnationGoesBack, "I1 I2 I8", 1000, at=228),
    Planted(RestoreForgetsWhatWasSeen, "I1 I2", 300, at=182),
    Planted(WatermarkSavedTooEarly, "I1 I2", 300, at=182),
    Planted(RestoreForgetsTheVersion, "I1 I3", 300, at=182),
    Planted(NoFence, "I4 I1", 1000, at=499),
    Planted(LeaseFromWhenTheHeartbeatArrived, "I4", 2000, at=305),
    Planted(LeaseOutlivesTheVerdict, "I4", 1000, at=305),
    Planted(AcknowledgesAfterTheLease, "I4", 2000, at=1860),
    Planted(TakesAllThatWaitedAtOnce, "I4", 2000, at=867),
    Planted(AppliesARepeat, "I1", 100, at=1),
    Planted(NeverAcknowledgesARepeat, "I8", 100, at=1),
    Planted(CountsNoLoss, "I2", 150, at=29),
    Planted(CountsAPushTooFew, "I2", 150, at=29),
    Planted(CountsNothingOfProcessesThatDied, "I2", 1000, at=29),
    Planted(CountsNothingAtItsStart, "I2", 2000, at=88),
    Planted(ForgetsALossThatThePartDoesNotKnow, "I2", 2000, at=1393),
    Planted(ReportsOneStepTooMany, "I2 I8", 600, at=38),
    Planted(ReportsOneStepTooFew, "I1", 600, at=1),
    Planted(PushesStepsAgain, "I1", 300, at=1),
    Planted(PushesTheLastHeldStepAgain, "I1", 300, at=1),
    Planted(NotesNothing, "I1 I2 I14", 1000, at=124),
    Planted(NotesAPushTooFew, "I2", 300, at=29),
    Planted(DoesNotInherit, "I1 I2", 600, at=1),
    Planted(ReportsSavedBeforeItIs, "I5", 20),
    Planted(ForgetsWhatItLostInItsFile, "I2", 1000, at=124),
    Planted(ARetryHasAFreshSequenceNumber, "I1", 100, at=1),
    Planted(NeverRetries, "I8", 700, at=91),
    Planted(IgnoresReplacements, "I2 I8 I14", 3000, at=524),
    Planted(DrainForgetsTheAccumulated, "I2", 20, at=1),
    Planted(PushesOverAPushUnderWay, "I1 I2", 100, at=1),
    Planted(InstallsInsideAStep, "I3", 20, at=1),
    Planted(ForgetsWhatIsInFlight, "I14", 100, at=1),
    Planted(ForgetsWhatHasAccumulated, "I14", 100, at=1),
    Planted(AppliesAgainWhatTheShardHas, "I14", 100, at=6),
    Planted(PushesBeforeItInstalls, "I14", 100, at=1),
    Planted(KeepsAStepThatIsTakenBack, "I14", 300, at=1),
    Planted(CountsItsOwnPushesAsStale, "I14", 100, at=1),
    Planted(SendsTheRestInItsPlace, "C1 I1", 100, at=1),
    *COORDINATOR_FAULTS,
    *RESUMING_FAULTS,
    *STOP_FAULTS,
]
"""Found on 2,500 seeds each; the limits leave some room, because a change of the draw moves every seed."""
