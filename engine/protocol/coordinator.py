"""The coordinator of every driver: it runs `driver.coordinator(run)`, and supervises the hosts of a run.

It holds no parameters and sees no gradient. A `WorkMode` knows how replicas do the work: on their own
(`leased_mode`), together (`joined_mode`), as evaluations of a function (`evaluation_mode`), or as their user
calls (`request_mode`).
`checkpointing.py` defines a checkpoint; `Save` is repeated until it is answered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from typing_extensions import override

from partita.engine.protocol import messages as m
from partita.engine.protocol.actions import Checkpoint, Decision, Plan, Validate, Work
from partita.engine.protocol.checkpoint_messages import (
    CheckpointCommitted,
    LogReport,
    Saved,
    SaveFailed,
    SaveProgress,
)
from partita.engine.protocol.commands import Iterated
from partita.engine.protocol.coordinator_effects import (
    CheckpointRequested,
    Committed,
    CoordinatorEffect,
    CoordinatorEvent,
    Decided,
    EndRun,
    NotCommitted,
    RunSettings,
    SetScale,
    Warn,
)
from partita.engine.protocol.copy_messages import CopyComplete
from partita.engine.protocol.events import Send
from partita.engine.protocol.failure import bounded, report_of, sentence
from partita.engine.protocol.host_lifecycle import Phase
from partita.engine.protocol.host_registry import HostRecord, HostState, ReplicaRecord
from partita.engine.protocol.journaled_plan import JournaledPlan, RecordedAnswer
from partita.engine.protocol.names import Topology
from partita.engine.protocol.supervision import Supervision
from partita.engine.protocol.validation import Validation
from partita.engine.protocol.validation_messages import ValidationResult
from partita.engine.protocol.views import Outline
from partita.engine.protocol.work_mode import WorkMode

Schedule: TypeAlias = Callable[[Outline], Plan]
"""The type of a driver's method `coordinator`."""


class Coordinator(Supervision):
    """Supervises the hosts of one run.

    Attributes:
        mode: how replicas do the work.
    """

    def __init__(
        self,
        schedule: Schedule,
        outline: Outline,
        mode: WorkMode,
        topology: Topology,
        *,
        journal: Sequence[RecordedAnswer] = (),
        settings: RunSettings | None = None,
    ) -> None:
        """Creates a run that has not started; `Opened` starts it.

        Args:
            schedule: the driver's program for the coordinator.
            outline: the run.
            mode: how replicas do the work.
            topology: how many hosts of each kind.
            journal: the entries of a run that is resumed.
            settings: of the run.

        Raises:
            JournalMismatch: the journal is not this program's.
            ValueError: the program yields what is no action of it.
        """
        plan = JournaledPlan(schedule(outline), journal)
        super().__init__(plan, outline, topology, settings or RunSettings())
        self.mode: Final = mode
        self._validation: Final = Validation(self)
        mode.attach(self)
        self._skip_what_is_done()

    @property
    @override
    def wakes_at(self) -> float:
        return self.mode.wakes_at

    @override
    def receive(self, event: CoordinatorEvent, now: float) -> list[CoordinatorEffect]:
        effects = super().receive(event, now)
        return effects if self.phase is Phase.OVER else effects + self.mode.settle(now)

    @override
    def _start(self, now: float) -> list[CoordinatorEffect]:
        over = self.plan.asks is None and self.mode.is_saved
        return self._end(complete=True) if over else super()._start(now)

    @override
    def _own_event(self, event: Any, now: float) -> list[CoordinatorEffect]:
        match event:
            case Committed(checkpoint=checkpoint):
                return self._committed(checkpoint, now)
            case NotCommitted(checkpoint=checkpoint, reason=reason):
                under_way = self.checkpoints.round
                known = under_way is not None and under_way.checkpoint == checkpoint
                return self._fail_round(reason, now) if known else []
            case Decided(decision=decision):
                return self._decided(decision, now)
            case SetScale(scale=scale):
                return self.mode.set_scale(scale, now)
            case CheckpointRequested():
                self.next_round_at = min(self.next_round_at, now)
                return []
            case _:
                return self.mode.own_event(event, now)

    @override
    def _handle(self, host: HostRecord, message: object, now: float) -> list[CoordinatorEffect]:
        match message:
            case Saved():
                commit = self.checkpoints.saved(host.name, message, now)
                self.extend_stop(now)
                return [] if commit is None else [commit]
            case SaveProgress():
                under_way = self.checkpoints.of_round(host.name, message)
                if under_way is not None:
                    under_way.progress_at = now
                    self.extend_stop(now)
                return []
            case SaveFailed(reason=reason, late=late):
                if self.checkpoints.of_round(host.name, message) is None:
                    return []
                return self.mode.postpone(now) if late else self._fail_round(f"{host.name}: {reason}", now)
            case LogReport(text=text, wants_checkpoint=wants):
                return self._log_reported(host, text, now, wants=wants)
            case m.WaitReport(host=other, waited_s=waited_s) if host.is_shard:
                return self.backup_is_awaited(host, other, waited_s, now)
            case ValidationResult():
                is_last = self._validation.receive(host, message, now)
                return self.validate_now(now) if is_last else []
            case CopyComplete(incarnation=incarnation):
                return self.copy_is_complete(host, incarnation)
            case m.SetUpProgress() if host.state is HostState.READY:
                return self.mode.receive(host, message, now)
            case _:
                return super()._handle(host, message, now)

    # The driver's program.

    def proceed(self, result: object, now: float) -> list[CoordinatorEffect]:
        """Gives the driver's program the result of its action, and begins the work that it yields next.

        It may be a user's code: an error of it ends the run, and the journal is kept.
        """
        try:
            done = [*self.plan.advance(result), *self._skip_what_is_done()]
        except KeyboardInterrupt:  # of the user, in the same thread
            raise
        except BaseException as error:  # noqa: BLE001 - reported to the user, whatever it is
            report = report_of(error)
            return self.fail(f"{self.mode.program} failed: {report.reason}", report.traceback)
        more = self.mode.begin_work(now) if isinstance(self.plan.asks, Work) else []
        return [*map(self.mode.progress, done), *more]

    def _skip_what_is_done(self) -> list[Iterated]:
        """Runs the program up to an action that is to be done; what was resumed holds those before."""
        done: list[Iterated] = []
        while True:
            action = self.plan.asks
            if isinstance(action, Work) and self.mode.works:
                self.until += (action.examples or 0) + (action.epochs or 0) * self.outline.examples
                if self.mode.extend():
                    return done
            elif isinstance(action, Validate):
                if action.at > self._settings.validated:
                    return done
                done += self.plan.advance(Decision())
                continue
            elif not (isinstance(action, Checkpoint) and self.phase is Phase.LAUNCHING and self.until):
                self.mode.check(action)
                return done
            done += self.plan.advance(
                None if isinstance(action, Work) else self._settings.next_checkpoint - 1
            )

    def finish_if_complete(self, now: float) -> list[CoordinatorEffect]:
        """Goes on with the program when the work that it has yielded is done; begins the last checkpoint."""
        ready = self.phase is Phase.RUNNING and self.registry.shards_ready
        if not ready or not self.mode.is_complete:
            return []
        effects: list[CoordinatorEffect] = []
        if isinstance(self.plan.asks, Work):
            effects = self.proceed(None, now)
        if isinstance(self.plan.asks, Validate):
            return effects + self.validate_now(now)
        writing = self.checkpoints.round is not None and (self.round_is_whole or not self.mode.drops_rounds)
        waits = writing or now < self.checkpoints.retry_at
        if waits or self.phase is Phase.OVER or isinstance(self.plan.asks, Work):
            return effects
        if not self.mode.saves:
            return [*effects, *self._end(complete=True)]
        self.phase = Phase.FINISHING if self.plan.asks is None else self.phase
        return effects + self.mode.begin_round(now)

    # Validations.

    @override
    def validate_now(self, now: float) -> list[CoordinatorEffect]:
        action, mode = self.plan.asks, self.mode
        is_there = self.phase is Phase.RUNNING and self.registry.shards_ready
        if not isinstance(action, Validate) or not is_there or not mode.is_at(action):
            return []
        if mode.is_past(action):
            effects = self.proceed(Decision(), now)
            return effects if self.phase is Phase.OVER else effects + mode.go_on(now)
        members = mode.validators
        effects = mode.call_back(now) if action.minibatches and not members else []
        settings: dict[str, Any] = {"basis": mode.validation_basis, "evaluation": mode.shown}
        return effects + self._validation.go_on(action, members, steps=mode.steps_done, now=now, **settings)

    def _decided(self, decision: Decision, now: float) -> list[CoordinatorEffect]:
        """Goes on as the user's callbacks have decided."""
        if not self._validation.awaits_decision:
            return []
        self._validation.end()
        self.mode.saves_first = decision.checkpoint
        effects = self.proceed(decision, now)
        return effects if self.phase is Phase.OVER else effects + self.mode.go_on(now)

    # The work.

    @override
    def _work_message(self, host: HostRecord, message: object, now: float) -> list[CoordinatorEffect]:
        return self.mode.receive(host, message, now)

    @override
    def _rejection_reason(self, host: HostRecord, message: object) -> str | None:
        return self.mode.rejection_reason(host, message) or super()._rejection_reason(host, message)

    @override
    def _joined(self, replica: ReplicaRecord, now: float) -> list[CoordinatorEffect]:
        return self.mode.joined(replica, now)

    @override
    def _has_left(self, replica: ReplicaRecord, now: float) -> list[CoordinatorEffect]:
        return self.mode.has_left(replica, now)

    @override
    def _go_on(self, now: float) -> list[CoordinatorEffect]:
        return self.mode.go_on(now)

    @override
    def _died(self, host: HostRecord, reason: str, now: float) -> list[CoordinatorEffect]:
        return super()._died(host, reason, now) if self.mode.restarts else self.fail(reason, host=host.name)

    @override
    def _failed(self, host: HostRecord, failed: m.Failed, now: float) -> list[CoordinatorEffect]:
        if self.mode.restarts:
            return super()._failed(host, failed, now)
        failed = bounded(failed)
        return self.fail(failed.reason, failed.traceback, host=host.name)

    @override
    def _is_dispensable(self, host: HostRecord) -> bool:
        return self.mode.is_dispensable(host)

    @override
    def _restart_part(
        self, host: HostRecord, replica: ReplicaRecord, reason: str, now: float
    ) -> list[CoordinatorEffect]:
        return self.mode.restart_part(host, replica, reason, now)

    @override
    def restart_replica(self, replica: ReplicaRecord, reason: str, now: float) -> list[CoordinatorEffect]:
        return self.mode.restart_replica(replica, reason, now)

    @override
    def _end_host(self, host: HostRecord, state: HostState, now: float) -> None:
        super()._end_host(host, state, now)
        self.mode.ended(host)

    @override
    def _result(self, *, complete: bool) -> EndRun:
        steps, committed = self.mode.steps_done, self.checkpoints.committed
        return EndRun(steps, committed, self.lost, complete, self.plan.outcome)

    # Checkpoints.

    def _committed(self, checkpoint: int, now: float) -> list[CoordinatorEffect]:
        """Uses a checkpoint for restarts from now on, unless its round was dropped meanwhile."""
        if not self.checkpoints.kept(checkpoint):
            return []
        for host in (*self.registry.shards, *self.registry.backups.values()):
            host.deaths = 0
        self.mode.committed()
        told = [Send(s.name, CheckpointCommitted(checkpoint)) for s in self._keepers_of_records]
        return [*told, *self._go_on_after(checkpoint, now)]

    def _go_on_after(self, checkpoint: int, now: float) -> list[CoordinatorEffect]:
        if self.phase in (Phase.FINISHING, Phase.STOPPING):
            return self._end(complete=self.round_is_whole and self.plan.asks is None)
        waited_for = isinstance(self.plan.asks, Checkpoint) and self.round_is_whole
        effects = self.proceed(checkpoint, now) if waited_for and self.mode.is_complete else []
        return effects if self.phase is Phase.OVER else effects + self.mode.go_on(now)

    @property
    def _keepers_of_records(self) -> Sequence[HostRecord]:
        """The shards that learn of committed checkpoints, because somebody keeps their records."""
        return self.registry.shards if self.keeps_records else ()

    def _log_reported(
        self, shard: HostRecord, text: str, now: float, *, wants: bool
    ) -> list[CoordinatorEffect]:
        """Begins a checkpoint soon where that makes room. A shard that reports does answer."""
        if wants:
            self.next_round_at = min(self.next_round_at, now)
            shard.since = max(shard.since, now)
        return [Warn(f"{shard.name}: {sentence(text)}")] if text else []

    def _watch_round(self, now: float) -> list[CoordinatorEffect]:
        """Begins a checkpoint that is due, repeats `Save`, and gives up a round without progress."""
        under_way, timeouts = self.checkpoints.round, self.timeouts
        if under_way is None:
            due_at = self.checkpoints.retry_at if self.phase is Phase.STOPPING else self.next_round_at
            due = now >= max(due_at, self.checkpoints.retry_at) and self.registry.shards_ready
            works = self.phase in (Phase.RUNNING, Phase.STOPPING)
            return self.mode.begin_round(now) if due and works else []
        waited_s = now - under_way.progress_at
        if waited_s < timeouts.save_s:
            return [*under_way.ask_again(now, timeouts.retry_s)]
        missing = ", ".join(under_way.missing) or "its manifest"
        what = f"checkpoint {under_way.checkpoint} waits for {missing} since {waited_s:.0f} s"
        if self.phase is Phase.FINISHING:
            return self.fail(f"{what}, and it is the last one; look for a full or slow disk")
        self.checkpoints.round = None
        return [Warn(f"{what} and is given up; the next one follows")]

    @override
    def shard_goes_back(self) -> str:
        return self.mode.shard_died(self.start_text)

    @override
    def shard_is_replaced(self, now: float) -> list[CoordinatorEffect]:
        return self.mode.shard_is_replaced(now)

    # Shards that are alive and do not answer.

    def _watch_answers(self, now: float) -> list[CoordinatorEffect]:
        """Looks for a shard that has left a part without an answer for too long."""
        for old in self._replaced.values():
            if old.replaced is not None and now >= old.replaced[0]:
                return self._lose(old, old.replaced[1], now)
        hosts, limit_s = self.registry.hosts, self.timeouts.answer_s
        for part, shard, since in self.waits:
            waiting, asked = hosts[part], hosts[shard]
            if asked.replica is not None or {waiting.state, asked.state} != {HostState.READY}:
                continue
            waited_s = now - max(since, waiting.since, asked.since, self.mode.answers_since)
            if waited_s < limit_s:
                continue
            why = f"{part} has no answer of {shard} for {waited_s:.0f} s ({limit_s:g} s are allowed)"
            others = (r for r in self.registry.replicas if r.index != waiting.replica)
            if any(replica.progress_at > now - waited_s for replica in others):
                return self._died(waiting, f"{why}, which answers another replica", now)
            return self.replace_unresponsive(asked, why, now)
        return []

    # Time.

    def _tick(self, now: float) -> list[CoordinatorEffect]:
        effects = self._watch_membership(now)
        hosts = self._watch_starts, self._watch_seats, self._watch_answers, self._ask_hosts
        work = self.mode.watch, self._validation.watch, self.finish_if_complete
        for watch in (*hosts, *work, self._watch_round, self._watch_stop):
            if self.phase is not Phase.OVER:
                effects += watch(now)
        if self.phase is not Phase.OVER:
            effects += self.directories.repeat(now, self.timeouts.retry_s)
        return effects

    def _stop_requested(self, now: float) -> list[CoordinatorEffect]:
        if self.phase is Phase.STOPPING:
            return []
        if self.phase is Phase.LAUNCHING or not self.registry.shards_ready or not self.mode.saves:
            return self._end()
        self.phase = Phase.STOPPING
        self._stop_at = now + self.timeouts.stop_s
        return self.mode.last_round(now)

    def _watch_stop(self, now: float) -> list[CoordinatorEffect]:
        if now < self._stop_at:
            return []
        committed = self.checkpoints.committed
        kept = "there is none before it" if committed is None else f"checkpoint {committed} is kept"
        late = f"the last checkpoint has come no further for {self.timeouts.stop_s:g} s; {kept}"
        return [Warn(late), *self._end()]

    @override
    def validate(self) -> None:
        """Checks the invariants. Raises AssertionError."""
        super().validate()
        self.checkpoints.validate()
        self._validation.validate()
        self.mode.validate()
        assert self.phase is not Phase.FINISHING or self.checkpoints.round is not None
