"""Replicas that compute what the driver's program evaluates, and shards that execute its requests on vectors.

The coordinator holds no vector. Each request becomes a command to all shards, which answer with scalars, and,
where it evaluates, work units for the replicas. A request's scalars are written to the journal before the
program gets them. So everything can be repeated: after a shard's death all shards go back to the last
checkpoint, and after the coordinator's own the program is started anew and gets what the journal holds;
either way the requests since the checkpoint that still matter are repeated (`recovery.py`). Where somebody
keeps the records of shards, only the command under way is repeated, to the shard that has died.

Source: DistBelief, section 4.2, algorithm 1.2.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from typing_extensions import override

from partita.engine.protocol.actions import CoordinatorAction, Validate
from partita.engine.protocol.batch_messages import (
    AssignmentResult,
    Command,
    CommandResult,
    CommandsMissing,
    MissingUnits,
)
from partita.engine.protocol.command_tracker import CommandTracker, Purpose
from partita.engine.protocol.commands import (
    Evaluate,
    Iterated,
    Request,
    Restore,
    ShowPoint,
    Snapshot,
    work_units_of,
)
from partita.engine.protocol.coordinator_effects import AppendJournal, CoordinatorEffect, Progress, Warn
from partita.engine.protocol.events import Send
from partita.engine.protocol.host_lifecycle import Phase
from partita.engine.protocol.host_registry import HostRecord, ReplicaRecord
from partita.engine.protocol.journaled_plan import JournalMismatch, digest_of
from partita.engine.protocol.names import part_indices
from partita.engine.protocol.recovery import still_needed
from partita.engine.protocol.supervision import Supervision
from partita.engine.protocol.work_mode import UnknownAction, WorkMode
from partita.engine.protocol.work_scheduler import Dispatch, WorkScheduler

MOST_REPEATED: Final = 4096
"""Requests since the last checkpoint after which the next one is due: they are kept, to be repeated."""


class EvaluationMode(WorkMode):
    """The work of a program that yields requests on vectors."""

    works = False
    program = "the method"

    def __init__(self, *, unit_size: int, position: int = 0, backups: bool = True) -> None:
        """Creates the work of a run.

        Args:
            unit_size: portions in a work unit, whose gradient is sent at once.
            position: how many requests are contained in the vectors that the shards start from.
            backups: whether work units of stragglers are assigned again at the end of an evaluation.
        """
        self._unit_size: Final = unit_size
        self._held = position  # requests that the committed checkpoint contains
        self._in_round = position  # those that the round under way contains
        self._backups: Final = backups
        self._rewind = False  # shards must go back first
        self._sums: tuple[float, ...] = ()  # further ones, of the last evaluation
        self._shown: tuple[int, tuple[int, ...]] = (0, ())  # a command, and the shards that have done it
        self.saves_first = False
        self._saving: int | None = None  # the checkpoint that the next request waits for

    @override
    def attach(self, run: Supervision) -> None:
        super().attach(run)
        if self._held > self.recorded:
            raise JournalMismatch(
                f"the checkpoint holds what {self._held} answers led to, and the journal has "
                f"{self.recorded}; its end is lost, so train from the start, or resume from an older "
                "copy of the folder"
            )
        run.plan.forget(self._held)
        self._scheduler = WorkScheduler(len(run.registry.replicas[0].parts), backups=self._backups)
        self._replay: deque[Request] = self._needed_since_checkpoint()
        self._commands = CommandTracker(run.registry.shards)

    @override
    def check(self, action: CoordinatorAction | None) -> None:
        if action is not None and not isinstance(action, tuple | Validate):
            raise UnknownAction(
                f"coordinator(run) yielded {action!r}, and the replicas evaluate; yield requests on vectors, "
                "or leave out evaluates = True in the driver"
            )

    @property
    @override
    def steps_done(self) -> tuple[int, ...]:
        """Iterations of the program so far."""
        iterated = self.run.plan.iterated
        return (iterated.iteration if iterated is not None else 0,)

    @property
    def recorded(self) -> int:
        """Requests whose scalars are in the journal."""
        return self.run.plan.answered

    @property
    def is_saved(self) -> bool:  # type: ignore[override]
        """Returns whether the last checkpoint contains all requests."""
        return self._held == self.recorded

    @property
    def wakes_at(self) -> float:  # type: ignore[override]
        """Time of the next `Tick` beyond the usual ones, at which backups may be assigned (seconds)."""
        return self._scheduler.next_backup_at if self._commands.evaluation else math.inf

    @property
    def answers_since(self) -> float:  # type: ignore[override]
        """Since when the evaluation or a validation runs; between two of them there is no point to send."""
        return self._commands.given_at if self._commands.evaluation or self.shown else math.inf

    @property
    @override
    def shown(self) -> int:
        """The command by which all shards show the present point to parts that ask; 0: a new one is needed,
        also where a process of a shard has begun from another copy, which does not keep that.
        """
        command, by = self._shown
        return command if by == self._shard_processes else 0

    @property
    def _shard_processes(self) -> tuple[int, ...]:
        return tuple(shard.incarnation for shard in self.run.registry.shards)

    @override
    def joined(self, replica: ReplicaRecord, now: float) -> list[CoordinatorEffect]:
        self._scheduler.add(replica.index, now)
        return self._schedule(now)

    @override
    def go_on(self, now: float) -> list[CoordinatorEffect]:
        again = self._commands.ask_again(now) if self.run.keeps_records else []
        return [*again, *self._next(now), *self._schedule(now)]

    # Commands.

    def _next(self, now: float) -> list[CoordinatorEffect]:
        """Sends the next command, when none is under way and all shards are there."""
        run, checkpoints = self.run, self.run.checkpoints
        over = run.phase in (Phase.LAUNCHING, Phase.OVER)
        if self._commands.command is not None or over or not run.registry.shards_ready:
            return []
        if self._rewind:
            self._rewind = False
            return self._give((Restore(checkpoints.committed),), Purpose.RESTORE, now)
        if self._replay:
            return self._give(self._replay.popleft(), Purpose.REPLAY, now)
        asks, may_write = run.plan.asks, checkpoints.round is None and now >= checkpoints.retry_at
        if self._is_saving(now):
            return self._save(now)
        if isinstance(asks, tuple) and run.phase is Phase.RUNNING:
            due = self.recorded - self._held >= MOST_REPEATED or now >= run.next_round_at
            asks = (self._snapshot(now), *asks) if due and may_write else asks
            return self._give(asks, Purpose.REQUEST, now)
        if isinstance(asks, Validate) and run.phase is Phase.RUNNING:
            shows = asks.minibatches and not self.shown
            return self._give((ShowPoint(),), Purpose.SHOW, now) if shows else run.validate_now(now)
        if not may_write:
            return []
        run.phase = Phase.FINISHING if run.phase is Phase.RUNNING else run.phase
        return self._give((self._snapshot(now),), Purpose.SNAPSHOT, now)

    def _is_saving(self, now: float) -> bool:
        """Returns whether the present point must be in a committed checkpoint first."""
        committed = self.run.checkpoints.committed
        if self._saving is not None and committed is not None and committed >= self._saving:
            self.saves_first, self._saving = False, None
        return self.saves_first and self.run.phase is Phase.RUNNING

    def _save(self, now: float) -> list[CoordinatorEffect]:
        checkpoints = self.run.checkpoints
        if checkpoints.round is not None or now < checkpoints.retry_at:
            return []
        snapshot = self._snapshot(now)
        self._saving = snapshot.checkpoint
        return self._give((snapshot,), Purpose.SNAPSHOT, now)

    @override
    def begin_round(self, now: float) -> list[CoordinatorEffect]:
        return self._next(now)  # it travels with the next command

    def _snapshot(self, now: float) -> Snapshot:
        """Begins a round of all vectors after what is recorded. It travels in the next command."""
        self._in_round, run = self.recorded, self.run
        whole, shards = run.plan.asks is None, run.registry.shards
        begun = run.new_round(shards, self.steps_done, now, whole=whole, position=self._in_round)
        return Snapshot(begun.checkpoint)

    def _give(self, request: Request, purpose: Purpose, now: float) -> list[CoordinatorEffect]:
        sent = self._commands.begin(request, purpose, now)
        evaluate = self._commands.evaluation
        if evaluate is not None:
            self._scheduler.begin(self._commands.number, work_units_of(evaluate, self._unit_size))
        return [*sent, *self._schedule(now)]

    @override
    def receive(self, host: HostRecord, message: object, now: float) -> list[CoordinatorEffect]:
        match message:
            case AssignmentResult() if host.replica is not None:
                return self._assignment_result(host, host.replica, message, now)
            case CommandResult(number=number, scalars=scalars) if self._commands.is_asked(number):
                self._commands.answered(host.name, scalars)
                return self._finish_command(now)
            case MissingUnits(number=number, units=ranges) if self._commands.is_asked(number):
                self._commands.reported(host.name, now, works=not ranges)
                self._scheduler.missing(ranges, self._commands.reports_since(host, now))
                return self._schedule(now)
            case CommandsMissing(number=number) if self._commands.is_asked(number):
                return self._lacks_commands(host, now)
        return []

    @override
    def rejection_reason(self, host: HostRecord, message: object) -> str | None:
        indices = part_indices(host.name)
        match message:
            case CommandResult(number=number, scalars=scalars) if self._commands.is_asked(number):
                expected = self._commands.scalars_of_shard
                if len(scalars) != expected:
                    return f"{len(scalars)} scalars for command {number}, which gives {expected}"
            case MissingUnits(number=number, units=ranges) if self._commands.is_asked(number):
                if not self._scheduler.are_ranges(ranges):
                    return f"that it lacks work units which command {number} does not have"
            case AssignmentResult(unit=unit, sequence=sequence) if indices is not None:
                if not self._scheduler.was_assigned(*indices, message):
                    return f"a result of work unit {unit} in assignment {sequence}, which it was not given"
        return None

    def _finish_command(self, now: float) -> list[CoordinatorEffect]:
        command, evaluate = self._commands.command, self._commands.evaluation
        if command is None or not self._commands.complete:
            return []
        if evaluate is not None and not self._scheduler.complete:
            return []
        effects = self._finished(command, evaluate, now)
        return effects if self.run.phase is Phase.OVER else effects + self._next(now)

    def _finished(self, command: Command, evaluate: Evaluate | None, now: float) -> list[CoordinatorEffect]:
        """Takes the results of a command that every shard has answered, with every work unit computed."""
        losses = () if evaluate is None else self._scheduler.losses(evaluate)
        if evaluate is not None:
            self._sums = self._scheduler.sums
        self._scheduler.end()
        self._commands.end()
        shows = self._commands.purpose is Purpose.SHOW
        self._shown = (self._commands.number, self._shard_processes) if shows else (0, ())
        if self._commands.purpose is not Purpose.REQUEST:
            return []
        self.run.shards_answer()
        scalars = self._commands.scalars(command, losses)
        index, asked = self.recorded, self.run.plan.asks
        assert isinstance(asked, tuple), asked
        return [AppendJournal(index, digest_of(asked), scalars), *self.run.proceed(scalars, now)]

    @override
    def progress(self, iterated: Iterated) -> Progress:
        work, plain = self._scheduler, super().progress(iterated)
        more = {"redone": work.redone, "busy": work.busy, "replicas": work.replicas}
        return replace(plain, values={**plain.values, **more}, further=self._sums, read=work.take_read())

    # Work units.

    def _assignment_result(
        self, host: HostRecord, index: int, result: AssignmentResult, now: float
    ) -> list[CoordinatorEffect]:
        replica, indices = self.run.registry.replicas[index], part_indices(host.name)
        host.deaths = replica.left = 0
        replica.stall_s, replica.progress_at = self.run.timeouts.stall_s, now
        assert indices is not None
        self._scheduler.computed(*indices, result, now)
        return self._finish_command(now) or self._schedule(now)

    def _schedule(self, now: float) -> list[CoordinatorEffect]:
        return self._send_assignments(self._scheduler.schedule(now)) if self._commands.evaluation else []

    def _send_assignments(self, dispatched: Sequence[Dispatch]) -> list[CoordinatorEffect]:
        return [
            Send(part.name, assignment)
            for replica, assignment in dispatched
            for part in self.run.registry.replicas[replica].parts
        ]

    # Checkpoints.

    @override
    def committed(self) -> None:
        self._held = self._in_round
        self.run.plan.forget(self._held)

    def _needed_since_checkpoint(self) -> deque[Request]:
        plan = self.run.plan
        asks = plan.asks if isinstance(plan.asks, tuple) else None
        return deque(still_needed(plan.since(self._held), asks))

    @override
    def is_at(self, stop: Validate) -> bool:
        return self.shown > 0 or not stop.minibatches

    @property
    @override
    def validation_basis(self) -> object:
        return self.shown

    # Death.

    @override
    def is_dispensable(self, host: HostRecord) -> bool:
        phase = self.run.phase
        return phase is Phase.STOPPING or (phase is Phase.FINISHING and host.replica is not None)

    @override
    def restart_replica(self, replica: ReplicaRecord, reason: str, now: float) -> list[CoordinatorEffect]:
        """Gives its work units to others. Its results may be on their way: shards are asked."""
        text = f"replica {replica.index} starts again, and others take its portions"
        return [*self.restarted(replica, text, reason, now), *self.has_left(replica, now)]

    @override
    def has_left(self, replica: ReplicaRecord, now: float) -> list[CoordinatorEffect]:
        self._scheduler.remove(replica.index)
        return [*self._commands.ask_again(now), *self._schedule(now)]

    @override
    def shard_died(self, start: str) -> str:
        """Takes all shards back to the checkpoint that the new one starts from, unless it has a log."""
        self._shown = (0, ())
        if self.run.keeps_records and not self.run.registry.backups:
            return f"goes on from {start} and its log"
        return self._go_back(start)

    def _go_back(self, start: str) -> str:
        self._scheduler.end()
        self._commands.end()
        self._rewind, self._shown = True, (0, ())
        self._replay = self._needed_since_checkpoint()
        again = f"{len(self._replay)} of {self.recorded - self._held} requests are done again"
        return f"all shards go back to {start}, and {again}"

    def _lacks_commands(self, shard: HostRecord, now: float) -> list[CoordinatorEffect]:
        """Takes all shards back: one of them has lost its log, or a part of it."""
        run = self.run
        run.phase = Phase.RUNNING if run.phase is Phase.FINISHING else run.phase
        run.checkpoints.shard_continues(shard.name)
        follows = self._go_back(run.start_text)
        warning = Warn(f"{shard.name} lacks commands that it had executed; {follows}")
        return [warning, *self.call_back(now), *self._next(now)]

    @override
    def shard_is_replaced(self, now: float) -> list[CoordinatorEffect]:
        return self.call_back(now)

    # Time.

    @override
    def watch(self, now: float) -> list[CoordinatorEffect]:
        run, effects = self.run, self._watch_command(now)
        if run.phase is Phase.OVER:
            return effects
        for index in self._scheduler.stalled(now, self._stalls_after):
            effects += run.restart_stalled(run.registry.replicas[index], "portion done", now)
        effects += self._commands.ask_again(now, run.timeouts.retry_s)
        effects += self._send_assignments(self._scheduler.resend(now, run.timeouts.retry_s))
        return effects + self._schedule(now) + self._next(now)  # a lost checkpoint is tried again

    def _stalls_after(self, index: int) -> float:
        """The seconds without progress after which a replica is restarted."""
        replica = self.run.registry.replicas[index]
        return math.inf if self.run.waits_for_shard(replica) else replica.stall_s

    def _watch_command(self, now: float) -> list[CoordinatorEffect]:
        overdue = self._commands.overdue(self.run.timeouts, now)
        return [] if overdue is None else self.run.replace_unresponsive(*overdue, now)

    @override
    def validate(self) -> None:
        """Checks the invariants. Raises AssertionError."""
        self._scheduler.validate()
        assert self._held <= self.recorded, (self._held, self.recorded)
        command = self._commands.command
        assert command is None or command.number == self._commands.number, command
