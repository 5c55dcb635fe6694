"""Sandblaster's machines with one fault each, as somebody might write them: each must be caught."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec

from partita.engine.protocol import (
    Coordinator,
    EvaluationMode,
    PointLinks,
    Shard,
    SumThenContinue,
)
from partita.engine.protocol.assigned_work import AssignedWork
from partita.engine.protocol.batch_messages import AssignmentResult, Contribution
from partita.engine.protocol.command_tracker import Purpose
from partita.engine.protocol.commands import Evaluate, Restore, Snapshot, Swap
from partita.engine.protocol.coordinator_effects import Commit
from partita.engine.protocol.shard_effects import (
    AddGradient,
    LoadCheckpoint,
    MoveGradient,
    RunOperations,
    StoreGradient,
)
from partita.engine.protocol.work_scheduler import WorkScheduler
from tests.simulation.outcomes import Planted
from tests.simulation.planted_coordinators import (
    DeclaresDeathBeforeTheLeaseIsOver,
    LaunchesTheSameIncarnationAgain,
    TakesAnErrorForADeath,
    WaitsForAnswersForEver,
)
from tests.simulation.planted_downpour import (
    LeaseFromWhenTheHeartbeatArrived,
    LeaseOutlivesTheVerdict,
    NoFence,
    ReportsSavedBeforeItIs,
    TakesAllThatWaitedAtOnce,
)

# Shards.


class CountsABackupToo(SumThenContinue):
    def _contribution(self, event: Any, contribution: Any) -> Any:
        number, evaluation = self.number, self._evaluation
        effects = super()._contribution(event, contribution)
        known = len(effects) == 1 and contribution.evaluation == number and evaluation is not None
        more = StoreGradient(int(event.sender[-1]), number, contribution.unit, event.payload)
        return [more, *effects] if known else effects


class DoesARepeatedCommandAgain(SumThenContinue):
    def _command(self, command: Any) -> Any:
        if command.number == self.number and self._result is not None:
            self.number -= 1
        return super()._command(command)


class TakesAGradientOfAnEarlierEvaluation(SumThenContinue):
    def _contribution(self, event: Any, contribution: Any) -> Any:
        if self._evaluation is not None and contribution.unit < self._evaluation.units:
            contribution = msgspec.structs.replace(contribution, evaluation=self.number)
        return super()._contribution(event, contribution)


class SendsThePointOfAnyCommand(SumThenContinue):
    def _fetch(self, event: Any, fetch: Any) -> Any:
        self._has_point = True
        return super()._fetch(event, fetch)


class DoesNotWaitForTheLastUnit(SumThenContinue):
    def _contribution(self, event: Any, contribution: Any) -> Any:
        effects = super()._contribution(event, contribution)
        evaluation = self._evaluation
        if evaluation is None or evaluation.missing != 1:
            return effects
        self._evaluation = None
        return [*effects, *self._go_on()]


class AcknowledgesWhatItDoesNotCount(SumThenContinue):
    def _contribution(self, event: Any, contribution: Any) -> Any:
        effects = super()._contribution(event, contribution)
        return [e for e in effects if not isinstance(e, StoreGradient)] if contribution.unit == 1 else effects


class AddsInTheOrderOfArrival(Shard):
    arrived: list[tuple[int, int]]

    def receive(self, event: Any, now: float) -> Any:
        number = self.version
        effects = super().receive(event, now)
        if self.version != number:
            self.arrived = []
        starts = sorted({e.unit for e in effects if isinstance(e, MoveGradient)})
        found: list[Any] = []
        for effect in effects:
            if isinstance(effect, StoreGradient):
                self.arrived.append((effect.machine, effect.unit))
                effect = replace(effect, beside=None)
            elif isinstance(effect, MoveGradient):
                stop = min((s for s in starts if s > effect.unit), default=1 << 30)
                of = [s for m, s in self.arrived if m == effect.machine and effect.unit <= s < stop]
                found += [AddGradient(effect.machine, of[0], one) for one in of[1:]]
                effect = replace(effect, unit=of[0])
            found += [] if isinstance(effect, AddGradient) else [effect]
        return found


class SnapshotInTheMiddleOfACommand(SumThenContinue):
    def _go_on(self) -> Any:
        if len(self._rest) > 1 and isinstance(self._rest[0], Snapshot):
            self._rest.rotate(-1)
        return super()._go_on()


class StaysWhereItIs(SumThenContinue):
    def _go_on(self) -> Any:
        return [RunOperations(()) if isinstance(e, LoadCheckpoint) else e for e in super()._go_on()]


class GoesBackToTheStart(SumThenContinue):
    def _go_on(self) -> Any:
        return [replace(e, checkpoint=None) if isinstance(e, LoadCheckpoint) else e for e in super()._go_on()]


# Parts.


class NeverRetries(PointLinks):
    def _retry(self, now: float) -> Iterator[Any]:
        return iter(())


class ForgetsWhatIsInFlight(PointLinks):
    def push(self, now: float, *, only: str | None = None) -> Iterator[Any]:
        if self._accumulated is not None:
            self._in_flight = None
        return super().push(now, only=only)


class TakesAnyAcknowledgement(PointLinks):
    def _acknowledged(self, link: Any, message: Contribution, now: float) -> Iterator[Any]:
        return super()._acknowledged(link, self._in_flight or message, now)


class SkipsAssignmentsThatOthersRun(AssignedWork):
    def __init__(self, links: PointLinks, **kwargs: Any) -> None:
        super().__init__(links, **(kwargs | {"alone": True}))


class RunsWhateverAssignmentIsThere(AssignedWork):
    def advance(self, now: float) -> Any:
        if self.computing is None and self._assigned and self.step not in self._assigned:
            self.step = min(self._assigned)
            self._look_ahead()
        return super().advance(now)


class RunsAtWhateverPointIsThere(PointLinks):
    def begin_evaluation(self, evaluation: int, now: float) -> None:
        super().begin_evaluation(evaluation, now)
        for link in self._links.values():
            if link.installed or link.staged:
                link.staged = evaluation
                link.fetch = None


class ContributesToWhateverIsNewest(PointLinks):
    def is_over(self, evaluation: int) -> bool:
        return False

    def computed(self, evaluation: int, unit: int) -> None:
        super().computed(self.newest, unit)


# The coordinator.


class _Scheduling:
    """Mixes another scheduler into a coordinator's mode."""

    scheduler: type[WorkScheduler]

    def attach(self: Any, run: Any) -> None:
        EvaluationMode.attach(self, run)
        old = self._scheduler
        self._scheduler = self.scheduler(old._machines, backups=old._backups)


class CountsTheLossOfABackup(_Scheduling, EvaluationMode):
    class scheduler(WorkScheduler):  # noqa: N801
        def _count(self, worker: Any, machine: int, message: AssignmentResult) -> None:
            losses = self._progress[message.unit].losses
            known = losses.get(machine)
            super()._count(worker, machine, message)
            if known is not None:
                losses[machine] = (known[0] + message.loss, known[1] + message.correct)


class APortionIsLostWithItsReplica(_Scheduling, EvaluationMode):
    class scheduler(WorkScheduler):  # noqa: N801
        def remove(self, replica: int) -> None:
            self._workers.pop(replica, None)

        def validate(self) -> None:
            """Says nothing."""


class NeverSendsAnAssignmentAgain(_Scheduling, EvaluationMode):
    class scheduler(WorkScheduler):  # noqa: N801
        def resend(self, now: float, retry_s: float) -> Any:
            return []


class OneUnitTooFar(_Scheduling, EvaluationMode):
    class scheduler(WorkScheduler):  # noqa: N801
        def _assign(self, worker: Any, number: int, now: float) -> Any:
            order = super()._assign(worker, number, now)
            return msgspec.structs.replace(order, first=order.first + 1)


class UsesANumberTwice(EvaluationMode):
    def shard_died(self, start: str) -> str:
        if self._commands.command is not None:
            self._commands.number -= 1
        return super().shard_died(start)


class RecordsBeforeAllHaveAnswered(EvaluationMode):
    def _finish_command(self, now: float) -> Any:
        results = self._commands._results
        if results and self._commands.purpose is Purpose.REQUEST:
            some = next(iter(results.values()))
            for shard in self.run.registry.shards:
                results.setdefault(shard.name, (0.0,) * len(some))
        return super()._finish_command(now)


class TakesAnswersToEarlierCommands(EvaluationMode):
    def attach(self, run: Any) -> None:
        super().attach(run)
        self._commands.is_asked = lambda number: self._commands.command is not None  # type: ignore[method-assign]


class SnapshotsWhatIsNotYetRecorded(EvaluationMode):
    def _give(self, request: Any, purpose: Any, now: float) -> Any:
        if isinstance(request[0], Snapshot):
            request = (*request[1:], request[0])
        return super()._give(request, purpose, now)


class ReportsTheWrongPosition(Coordinator):
    def _handle(self, host: Any, message: Any, now: float) -> Any:
        return [
            replace(e, position=self.plan.answered) if isinstance(e, Commit) else e
            for e in super()._handle(host, message, now)
        ]


class DoesNothingAgain(EvaluationMode):
    def shard_died(self, start: str) -> str:
        text = super().shard_died(start)
        self._replay.clear()
        return text


class OnlyTheDeadGoBack(EvaluationMode):
    def shard_died(self, start: str) -> str:
        text = super().shard_died(start)
        self._rewind = False
        return text


class GoesBackTooFar(EvaluationMode):
    def _give(self, request: Any, purpose: Any, now: float) -> Any:
        request = (Restore(None),) if purpose is Purpose.RESTORE else request
        return super()._give(request, purpose, now)


class RepeatsEvaluationsOnly(EvaluationMode):
    def shard_died(self, start: str) -> str:
        text = super().shard_died(start)
        kept = [r for r in self._replay if any(isinstance(o, Evaluate) for o in r)]
        self._replay.clear()
        self._replay.extend(kept)
        return text


class ForgetsThatNamesWereExchanged(EvaluationMode):
    def shard_died(self, start: str) -> str:
        text = super().shard_died(start)
        kept = [tuple(o for o in request if not isinstance(o, Swap)) for request in self._replay]
        self._replay.clear()
        self._replay.extend(request for request in kept if request)
        return text


class ResumesAsIfNothingWereMissing(EvaluationMode):
    def attach(self, run: Any) -> None:
        self._held = self._in_round = run.plan.answered
        super().attach(run)


class EndsWithoutALastCheckpoint(EvaluationMode):
    def _next(self, now: float) -> Any:
        over = self.run.plan.outcome is not None
        return self.run._end(complete=True) if over else super()._next(now)


class WaitsForCommandsForEver(EvaluationMode):
    def _watch_command(self, now: float) -> Any:
        return []


FAULTS = [
    Planted(CountsABackupToo, "I6", at=40),
    Planted(DoesARepeatedCommandAgain, "I6 I7", at=3),
    Planted(TakesAGradientOfAnEarlierEvaluation, "I6", at=21),
    Planted(NoFence, "I4", at=415),
    Planted(LeaseFromWhenTheHeartbeatArrived, "I4", at=415),
    Planted(LeaseOutlivesTheVerdict, "I4", at=15),
    Planted(TakesAllThatWaitedAtOnce, "I4 I6 I7 validate", at=1090),
    Planted(SendsThePointOfAnyCommand, "I6"),
    Planted(DoesNotWaitForTheLastUnit, "I6", at=0),
    Planted(AcknowledgesWhatItDoesNotCount, "I6 validate", at=0),
    Planted(AddsInTheOrderOfArrival, "I6", at=8),
    Planted(SnapshotInTheMiddleOfACommand, "I6 I7", at=4),
    Planted(ReportsSavedBeforeItIs, "I5", at=4),
    Planted(StaysWhereItIs, "I7", at=0),
    Planted(GoesBackToTheStart, "I7", at=65),
    Planted(NeverRetries, "I8", at=244),
    Planted(ForgetsWhatIsInFlight, "I6 I8", at=8),
    Planted(TakesAnyAcknowledgement, "I6 I8", at=114),
    Planted(SkipsAssignmentsThatOthersRun, "I8"),
    Planted(RunsWhateverAssignmentIsThere, "I8 validate", at=61),
    Planted(RunsAtWhateverPointIsThere, "I6 validate", at=6),
    Planted(ContributesToWhateverIsNewest, "I6 validate I8"),
    Planted(CountsTheLossOfABackup, "I6", at=19),
    Planted(APortionIsLostWithItsReplica, "I8 validate", at=4),
    Planted(NeverSendsAnAssignmentAgain, "I8", at=19),
    Planted(OneUnitTooFar, "I6", at=4),
    Planted(UsesANumberTwice, "I7", at=0),
    Planted(RecordsBeforeAllHaveAnswered, "I6", at=6),
    Planted(TakesAnswersToEarlierCommands, "I6 S5 validate", at=12),
    Planted(SnapshotsWhatIsNotYetRecorded, "I5", at=1),
    Planted(ReportsTheWrongPosition, "I5", at=6),
    Planted(DoesNothingAgain, "I5 I6 I7", at=3),
    Planted(OnlyTheDeadGoBack, "I5 I6 I7", at=3),
    Planted(GoesBackTooFar, "I5 I7", at=65),
    Planted(RepeatsEvaluationsOnly, "I5 I6 I7", at=3),
    Planted(ForgetsThatNamesWereExchanged, "I5 I6 I7", at=15),
    Planted(ResumesAsIfNothingWereMissing, "I5 I6 I7 I10", at=22),
    Planted(EndsWithoutALastCheckpoint, "I10", at=4),
    Planted(DeclaresDeathBeforeTheLeaseIsOver, "I4", at=719),
    Planted(LaunchesTheSameIncarnationAgain, "I4", at=0),
    Planted(TakesAnErrorForADeath, "I13", at=2237),
    Planted(WaitsForAnswersForEver, "I8", at=3),
    Planted(WaitsForCommandsForEver, "I8", at=42),
]
"""A seed that found a fault once is tried first: a change of the draw, or of a machine, moves all seeds.

Most are of walks, which no change of a method moves.
"""
