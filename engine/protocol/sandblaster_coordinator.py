"""The coordinator of a Sandblaster run: steps a batch method, and sends commands to shards, work to replicas.

It holds no vector. The method yields requests; each becomes a command to all shards, which answer with
scalars, and, where it evaluates, work units for the replicas. A request's scalars are written to the journal
before the method gets them. So everything can be repeated: after a shard's death all shards go back to the
last checkpoint, and after the coordinator's own the method is started anew and gets what the journal holds;
either way the requests since the checkpoint that still matter are repeated (`recovery.py`).

Source: DistBelief, section 4.2, algorithm 1.2.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from typing_extensions import override

from partita.engine.protocol.batch_messages import AssignmentResult, Command, CommandResult, MissingUnits
from partita.engine.protocol.command_tracker import CommandTracker, Purpose
from partita.engine.protocol.commands import (
    Evaluate,
    Iterated,
    Outcome,
    Request,
    Restore,
    Scalars,
    Snapshot,
    Steps,
    work_units_of,
)
from partita.engine.protocol.coordinator import Coordinator
from partita.engine.protocol.coordinator_effects import (
    AppendJournal,
    CoordinatorEffect,
    EndRun,
    Progress,
    RunSettings,
    Warn,
)
from partita.engine.protocol.events import Send
from partita.engine.protocol.failure import report_of
from partita.engine.protocol.host_lifecycle import Phase
from partita.engine.protocol.host_registry import HostRecord, HostState, ReplicaRecord
from partita.engine.protocol.journaled_method import (
    JournaledMethod,
    JournalMismatch,
    RecordedAnswer,
    digest_of,
)
from partita.engine.protocol.names import COORDINATOR, Topology, part_indices
from partita.engine.protocol.recovery import still_needed
from partita.engine.protocol.work_scheduler import Dispatch, WorkScheduler

MOST_REPEATED: Final = 4096
"""Requests since the last checkpoint after which the next one is due: they are kept, to be repeated."""


class SandblasterCoordinator(Coordinator):
    """Supervises one run of a batch method."""

    def __init__(
        self,
        topology: Topology,
        *,
        begin: Callable[[], Steps],
        unit_size: int,
        journal: Sequence[RecordedAnswer] = (),
        position: int = 0,
        backups: bool = True,
        settings: RunSettings | None = None,
    ) -> None:
        """Creates a run that has not started; `Opened` starts it.

        Args:
            topology: how many hosts of each kind.
            begin: starts the method.
            unit_size: portions in a work unit, whose gradient is sent at once.
            journal: the entries of a run that is resumed.
            position: how many of them are contained in the vectors that the shards start from.
            backups: whether work units of stragglers are assigned again at the end of an evaluation.
            settings: of the run.

        Raises:
            JournalMismatch: the journal is not this method's.
        """
        super().__init__(topology, settings, done=(0,) * topology.replicas, steps=1)
        if position > len(journal):
            raise JournalMismatch(
                f"the checkpoint holds what {position} answers led to, and the journal has {len(journal)}; "
                "its end is lost, so train from the start, or resume from an older copy of the folder"
            )
        self._method: Final = JournaledMethod(begin(), journal)
        self._unit_size: Final = unit_size
        self._held = position  # requests that the committed checkpoint contains
        self._method.forget(position)
        self._in_round = position  # those that the round under way contains
        self._scheduler: Final = WorkScheduler(topology.machines, backups=backups)
        self._replay: deque[Request] = self._needed_since_checkpoint()
        self._rewind = False  # shards must go back first
        self._commands: Final = CommandTracker(self._registry.shards)

    @property
    def iterations(self) -> int:
        """Iterations of the method so far."""
        return self._method.iterated.iteration if self._method.iterated is not None else 0

    @property
    def recorded(self) -> int:
        """Requests whose scalars are in the journal."""
        return self._method.answered

    @property
    def outcome(self) -> Outcome | None:
        """The end of the method; None while it runs."""
        return self._method.outcome

    @property
    def wakes_at(self) -> float:
        """Time of the next `Tick` beyond the usual ones, at which backups may be assigned (seconds)."""
        return self._scheduler.next_backup_at if self._commands.evaluation else math.inf

    def _start(self, now: float) -> list[CoordinatorEffect]:
        if self.outcome is not None and self._held == self.recorded:  # the checkpoint contains all of it
            return self._end(complete=True)
        return super()._start(now)

    def _joined(self, replica: ReplicaRecord, now: float) -> list[CoordinatorEffect]:
        self._scheduler.add(replica.index, now)
        return self._schedule(now)

    def _go_on(self, now: float) -> list[CoordinatorEffect]:
        return self._next(now) + self._schedule(now)

    # Commands.

    def _next(self, now: float) -> list[CoordinatorEffect]:
        """Sends the next command, when none is under way and all shards are there."""
        if self._commands.command is not None or self.phase not in (Phase.RUNNING, Phase.STOPPING):
            return []
        if not self._registry.shards_ready:
            return []
        if self._rewind:
            self._rewind = False
            return self._give((Restore(self._checkpoints.committed),), Purpose.RESTORE, now)
        if self._replay:
            return self._give(self._replay.popleft(), Purpose.REPLAY, now)
        asks, writing = self._method.asks, self._checkpoints.round
        if asks is None or self.phase is Phase.STOPPING:
            if writing is not None and (self.phase is Phase.STOPPING or writing.commit is not None):
                return []  # the last checkpoint, or the one before it, is being written
            if now < self._checkpoints.retry_at:
                return []
            return self._give((self._snapshot(now),), Purpose.SNAPSHOT, now)
        due = self.recorded - self._held >= MOST_REPEATED or now >= self._next_round_at
        if due and now >= self._checkpoints.retry_at and writing is None:
            asks = (self._snapshot(now), *asks)
        return self._give(asks, Purpose.REQUEST, now)

    def _snapshot(self, now: float) -> Snapshot:
        """Begins a round of all vectors after what is recorded. It travels in the next command."""
        self._in_round = self.recorded
        begun = self._new_round(
            now, steps=(self.iterations,), is_last=self.outcome is not None, position=self._in_round
        )
        return Snapshot(begun.checkpoint)

    def _give(self, request: Request, purpose: Purpose, now: float) -> list[CoordinatorEffect]:
        sent = self._commands.begin(request, purpose, now)
        evaluate = self._commands.evaluation
        if evaluate is not None:
            self._scheduler.begin(self._commands.number, work_units_of(evaluate, self._unit_size))
        return [*sent, *self._schedule(now)]

    def _work_message(self, host: HostRecord, message: object, now: float) -> list[CoordinatorEffect]:
        match message:
            case AssignmentResult() if host.replica is not None:
                return self._assignment_result(host, host.replica, message, now)
            case CommandResult(number=number, scalars=scalars) if self._commands.is_asked(number):
                self._commands.answered(host.name, scalars)
                return self._finish_if_complete(now)
            case MissingUnits(number=number, units=ranges) if self._commands.is_asked(number):
                self._commands.reported(host.name, now, works=not ranges)
                self._scheduler.missing(ranges)
                return self._schedule(now)
        return []

    def _rejection_reason(self, host: HostRecord, message: object) -> str | None:
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
        return super()._rejection_reason(host, message)

    def _finish_if_complete(self, now: float) -> list[CoordinatorEffect]:
        command, evaluate = self._commands.command, self._commands.evaluation
        if command is None or not self._commands.complete:
            return []
        if evaluate is not None and not self._scheduler.complete:
            return []
        effects = self._finished(command, evaluate)
        return effects if self.phase is Phase.OVER else effects + self._next(now)

    def _finished(self, command: Command, evaluate: Evaluate | None) -> list[CoordinatorEffect]:
        """Takes the results of a command that every shard has answered, with every work unit computed."""
        losses = () if evaluate is None else self._scheduler.losses(evaluate)
        self._scheduler.end()
        self._commands.end()
        if self._commands.purpose is Purpose.SNAPSHOT:
            if self._checkpoints.round is not None:
                self.phase = Phase.FINISHING if self.phase is Phase.RUNNING else self.phase
            elif self._held == self.recorded:  # its files were there before the last answer was
                return self._end(complete=self._round_is_last)
            return []
        if self._commands.purpose is not Purpose.REQUEST:
            return []
        self._shards_answer()
        scalars = self._commands.scalars(command, losses)
        index, asked = self.recorded, self._method.asks
        assert asked is not None
        return [AppendJournal(index, digest_of(asked), scalars), *self._advance_method(scalars)]

    def _advance_method(self, scalars: Scalars) -> list[CoordinatorEffect]:
        """Gives the method its scalars. It may be a user's code: an error of it ends the run, and the journal
        is kept.
        """
        try:
            done = self._method.advance(scalars)
        except KeyboardInterrupt:  # of the user, in the same thread
            raise
        except BaseException as error:  # noqa: BLE001 - reported to the user, whatever it is
            report = report_of(error)
            return self._fail(f"the method failed: {report.reason}", report.traceback)
        return [self._progress(iterated) for iterated in done]

    def _progress(self, iterated: Iterated) -> Progress:
        work = self._scheduler
        values = {
            "loss": iterated.loss,
            "gradient_norm": iterated.gradient_norm,
            "step": iterated.step,
            "evaluations": iterated.evaluations,
            "redone": work.redone,
            "busy": work.busy,
            "replicas": work.replicas,
        }
        return Progress(COORDINATOR, iterated.iteration, values=values, note=iterated.note)

    # Work units.

    def _assignment_result(
        self, host: HostRecord, index: int, result: AssignmentResult, now: float
    ) -> list[CoordinatorEffect]:
        host.deaths = self._registry.replicas[index].left = 0
        replica, indices = self._registry.replicas[index], part_indices(host.name)
        replica.stall_s, replica.progress_at = self._timeouts.stall_s, now
        assert indices is not None
        self._scheduler.computed(*indices, result, now)
        return self._finish_if_complete(now) or self._schedule(now)

    def _schedule(self, now: float) -> list[CoordinatorEffect]:
        return self._send_assignments(self._scheduler.schedule(now)) if self._commands.evaluation else []

    @property
    def _answers_since(self) -> float:
        """Since when the evaluation runs; between two of them there is no point to send."""
        return self._commands.given_at if self._commands.evaluation else math.inf

    def _send_assignments(self, dispatched: Sequence[Dispatch]) -> list[CoordinatorEffect]:
        return [
            Send(part.name, assignment)
            for replica, assignment in dispatched
            for part in self._registry.replicas[replica].parts
        ]

    # Checkpoints.

    def _committed(self, checkpoint: int, now: float) -> list[CoordinatorEffect]:
        before = self._checkpoints.committed
        effects = super()._committed(checkpoint, now)
        if self._checkpoints.committed != before:
            self._held = self._in_round
            self._method.forget(self._held)
        return effects or self._next(now)

    def _last_round(self, now: float) -> list[CoordinatorEffect]:
        return self._next(now)  # or when the command under way is done, if there is time for that

    def _result(self, *, complete: bool) -> EndRun:
        return EndRun((self.iterations,), self._checkpoints.committed, self.lost, complete, self.outcome)

    def _needed_since_checkpoint(self) -> deque[Request]:
        return deque(still_needed(self._method.since(self._held), self._method.asks))

    # Death.

    def _is_dispensable(self, host: HostRecord) -> bool:
        return self.phase is Phase.STOPPING or (self.phase is Phase.FINISHING and host.replica is not None)

    def _restart_replica(self, replica: ReplicaRecord, reason: str, now: float) -> list[CoordinatorEffect]:
        """Gives its work units to others. Its results may be on their way: shards are asked."""
        return [
            Warn(f"{reason}; replica {replica.index} starts again, and others take its portions"),
            self._relaunch(replica.parts, reason, now),
            *self._has_left(replica, now),
        ]

    @override
    def _has_left(self, replica: ReplicaRecord, now: float) -> list[CoordinatorEffect]:
        self._scheduler.remove(replica.index)
        return [*self._commands.ask_again(now), *self._schedule(now)]

    def _restart_shard(self, host: HostRecord, reason: str, now: float) -> list[CoordinatorEffect]:
        """Takes all shards back to the checkpoint that the new one starts from."""
        start = self._shard_died(host)
        self._scheduler.end()
        self._commands.end()
        self._rewind = True
        self._replay = self._needed_since_checkpoint()
        again = f"{len(self._replay)} of {self.recorded - self._held} requests are done again"
        effects: list[CoordinatorEffect] = [
            Warn(f"{host.name}: {reason}; all shards go back to {start}, and {again}"),
            self._relaunch((host,), reason, now),
        ]
        for replica in self._registry.replicas:  # one that was not needed any more is needed again
            if any(part.state is HostState.GONE for part in replica.parts):
                effects += self._restart_replica(replica, f"replica {replica.index} had ended", now)
        return effects

    # Time.

    def _watch_work(self, now: float) -> list[CoordinatorEffect]:
        effects = self._watch_command(now)
        if self.phase is Phase.OVER:
            return effects
        for index in self._scheduler.stalled(now, self._stalls_after):
            effects += self._restart_stalled(self._registry.replicas[index], "portion done", now)
        effects += self._commands.ask_again(now, self._timeouts.retry_s)
        effects += self._send_assignments(self._scheduler.resend(now, self._timeouts.retry_s))
        return effects + self._schedule(now) + self._next(now)  # a lost checkpoint is tried again

    def _stalls_after(self, index: int) -> float:
        """The seconds without progress after which a replica is restarted."""
        replica = self._registry.replicas[index]
        return math.inf if self._waits_for_shard(replica) else replica.stall_s

    def _watch_command(self, now: float) -> list[CoordinatorEffect]:
        overdue = self._commands.overdue(self._timeouts, now)
        return [] if overdue is None else self._replace_unresponsive(*overdue, now)

    def validate(self) -> None:
        """Checks the invariants. Raises AssertionError."""
        super().validate()
        self._scheduler.validate()
        assert self._held <= self.recorded, (self._held, self.recorded)
        command = self._commands.command
        assert command is None or command.number == self._commands.number, command
        assert command is None or self.phase is not Phase.FINISHING, command
        assert self.phase is not Phase.FINISHING or self._checkpoints.round is not None
