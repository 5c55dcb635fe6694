"""The command that the shards execute now: its results, and the shards that do not answer it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum

from partita.engine.protocol.batch_messages import Command
from partita.engine.protocol.commands import (
    Evaluate,
    Request,
    Scalars,
    evaluation_in,
    join_scalars,
    scalars_of_shard,
)
from partita.engine.protocol.coordinator_effects import Timeouts
from partita.engine.protocol.events import Send
from partita.engine.protocol.host_registry import HostRecord, HostState


class Purpose(Enum):
    """Why a command was sent."""

    REQUEST = "what the method asks for"
    REPLAY = "what it asked for, once more"
    RESTORE = "back to the checkpoint"
    SNAPSHOT = "the last checkpoint"
    SHOW = "the point, for a validation"


class CommandTracker:
    """One command after another, to all shards.

    Attributes:
        command: the one under way.
        evaluation: the evaluation that it contains; None: it contains none, or no command is under way.
        scalars_of_shard: the number of scalars that each shard answers it with.
        purpose: of the last one.
        number: of the last one.
        given_at: when it was first sent (seconds).
    """

    def __init__(self, shards: Sequence[HostRecord]) -> None:
        self.command: Command | None = None
        self.evaluation: Evaluate | None = None
        self.scalars_of_shard = 0
        self.purpose = Purpose.REQUEST
        self.number = 0
        self.given_at = 0.0
        self._shards = shards
        self._asked_at = 0.0
        self._results: dict[str, Scalars] = {}
        self._reported_at: dict[str, float] = {}  # when a shard last reported on the command
        self._works_since: dict[str, float] = {}  # since when it reports to be executing it
        self._processes: dict[str, tuple[int, float]] = {}  # incarnation, and since when it reports

    @property
    def complete(self) -> bool:
        """Returns whether a command is under way that every shard has answered."""
        return self.command is not None and len(self._results) == len(self._shards)

    def begin(self, request: Request, purpose: Purpose, now: float) -> list[Send]:
        """Sends the next command to all shards."""
        self.number += 1
        self.command, self.purpose = Command(self.number, request), purpose
        self.evaluation, self.scalars_of_shard = evaluation_in(request), scalars_of_shard(request)
        self._asked_at = self.given_at = now
        self._results.clear()
        self._works_since.clear()
        self._reported_at = {shard.name: now for shard in self._shards}
        self._processes = {shard.name: (shard.incarnation, -math.inf) for shard in self._shards}
        return [Send(shard.name, self.command) for shard in self._shards]

    def end(self) -> None:
        """Ends the command under way, or gives it up."""
        self.command = self.evaluation = None

    def is_asked(self, number: int) -> bool:
        """Returns whether this is the number of the command under way."""
        return self.command is not None and self.command.number == number

    def answered(self, shard: str, scalars: Scalars) -> None:
        """Notes a shard's result; the first one counts."""
        self._results.setdefault(shard, scalars)

    def reported(self, shard: str, now: float, *, works: bool) -> None:
        """Notes that a shard has the command, and whether it is executing operations."""
        self._reported_at[shard] = now
        if works:
            self._works_since.setdefault(shard, now)
        else:
            self._works_since.pop(shard, None)

    def reports_since(self, shard: HostRecord, now: float) -> float:
        """Returns since when a shard's present process reports on the command; -inf: from the start.

        Contributions before that may have gone to the process before.
        """
        incarnation, since = self._processes[shard.name]
        if incarnation != shard.incarnation:
            since = now
            self._processes[shard.name] = shard.incarnation, now
        return since

    def scalars(self, command: Command, losses: Scalars) -> Scalars:
        """Returns the scalars of a complete command; `losses` are those of its evaluation."""
        results = [self._results[shard.name] for shard in self._shards]
        return join_scalars(command.operations, results, losses)

    def ask_again(self, now: float, after_s: float = 0.0) -> list[Send]:
        """Repeats the command to shards without a result: they execute it, answer, or report progress."""
        command = self.command
        if command is None or now - self._asked_at < after_s:
            return []
        self._asked_at = now
        return [Send(s.name, command) for s in self._shards if s.name not in self._results]

    def overdue(self, timeouts: Timeouts, now: float) -> tuple[HostRecord, str] | None:
        """Returns a shard that does not answer the command, or executes it for too long, and why."""
        if self.command is None:
            return None
        what = f"command {self.number} ({self.purpose.value})"
        for shard in self._shards:
            if shard.name in self._results or shard.state is not HostState.READY:
                continue
            silent_s = now - max(self._reported_at[shard.name], shard.since)
            worked_s = now - self._works_since.get(shard.name, now)
            if silent_s >= timeouts.answer_s:
                return shard, f"no answer to {what} for {silent_s:.0f} s"
            if worked_s >= timeouts.work_s:
                return shard, f"it is at {what} since {worked_s:.0f} s"
        return None
