"""A validation, as the coordinator sees it: minibatches that replicas share, and the sums that come back.

All replicas have the same parameters meanwhile (`WorkMode.validation_basis`): where that changes, every
minibatch is evaluated again. Where a replica comes or goes, those that are open are divided anew. A minibatch
is done when all parts of one replica have answered it; which replica that is changes no bit of its sums.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, TypeAlias

from partita.engine.protocol.actions import Validate
from partita.engine.protocol.coordinator_effects import CoordinatorEffect, Validated
from partita.engine.protocol.events import Send
from partita.engine.protocol.host_registry import HostRecord
from partita.engine.protocol.message_base import UnitRange
from partita.engine.protocol.names import machine_of
from partita.engine.protocol.ranges import Ranges
from partita.engine.protocol.validation_messages import ValidationResult, ValidationWork

if TYPE_CHECKING:
    from partita.engine.protocol.supervision import Supervision

Sums: TypeAlias = tuple[float, ...]


class Validation:
    """The validation of a run that is under way, or the last one.

    Attributes:
        action: of the driver's program; None: none is under way.
        awaits_decision: whether all minibatches are done, and the user's callbacks are asked.
    """

    def __init__(self, run: Supervision) -> None:
        self.action: Validate | None = None
        self.awaits_decision = False
        self._run: Final = run
        self._round = 0
        self._basis: object = None
        self._members: Mapping[int, tuple[int, ...]] = {}  # incarnations of the parts of each replica
        self._done: dict[int, tuple[Sums, ...]] = {}  # by minibatch: the sums of each part
        self._open: dict[int, dict[int, Sums]] = {}  # by minibatch and machine
        self._shares: dict[int, ValidationWork] = {}  # by replica
        self._asked_at = float("-inf")

    def end(self) -> None:
        """Ends the validation: it is decided how the run goes on."""
        self.action, self.awaits_decision = None, False
        self._shares, self._open, self._done = {}, {}, {}

    def go_on(
        self,
        action: Validate,
        members: Mapping[int, tuple[int, ...]],
        *,
        basis: object,
        evaluation: int,
        steps: tuple[int, ...],
        now: float,
    ) -> list[CoordinatorEffect]:
        """Begins a validation or goes on with it.

        Args:
            action: of the driver's program.
            members: the replicas that have the parameters, with the incarnations of their parts.
            basis: what the parameters follow from.
            evaluation: the command by which shards send them; 0: none.
            steps: steps done by each replica, or iterations.
            now: seconds, monotonic.
        """
        if self.awaits_decision:
            return []
        if self.action is not action or basis != self._basis:
            self.end()
            self.action, self._basis, self._members = action, basis, {}
        if len(self._done) == action.minibatches:
            self.awaits_decision = True
            found = tuple(self._done[unit] for unit in range(action.minibatches))
            return [Validated(action, steps, self._run.checkpoints.next, found)]
        if members and (members != self._members or not self._shares):
            self._members = dict(members)
            self._divide(action, evaluation, now)
            return self._ask(now)
        return []

    def _divide(self, action: Validate, evaluation: int, now: float) -> None:
        """Divides the open minibatches among the replicas, as ranges of about equal length."""
        self._round += 1
        self._open, self._shares = {}, {}
        rest = [unit for unit in range(action.minibatches) if unit not in self._done]
        for n, replica in enumerate(sorted(self._members)):
            share = rest[n * len(rest) // len(self._members) : (n + 1) * len(rest) // len(self._members)]
            if share:
                self._open.update((unit, {}) for unit in share)
                self._shares[replica] = ValidationWork(self._round, _ranges(share), evaluation)
                self._run.registry.replicas[replica].progress_at = now

    def _ask(self, now: float) -> list[CoordinatorEffect]:
        """Asks the replicas with open minibatches."""
        self._asked_at = now
        replicas = self._run.registry.replicas
        asked = ((index, work) for index, work in self._shares.items() if self._lacks(work))
        return [Send(part.name, work) for index, work in asked for part in replicas[index].parts]

    def _lacks(self, work: ValidationWork) -> bool:
        return any(unit in self._open for start, stop in work.units for unit in range(start, stop))

    def receive(self, host: HostRecord, result: ValidationResult, now: float) -> bool:
        """Takes a part's sums. Returns whether that was the last answer missing."""
        answers = self._open.get(result.unit)
        if self.action is None or result.round != self._round or answers is None:
            return False
        replica = self._run.registry.replica_of(host)
        assert replica is not None, host
        host.deaths, replica.progress_at = 0, now
        answers[machine_of(host.name)] = (result.loss, float(result.correct), *result.sums)
        if len(answers) == len(replica.parts):
            self._done[result.unit] = tuple(answers[machine] for machine in sorted(answers))
            del self._open[result.unit]
        return not self._open

    def watch(self, now: float) -> list[CoordinatorEffect]:
        """Repeats what was not answered, and restarts replicas that get no further."""
        if self.action is None or self.awaits_decision or not self._open:
            return []
        effects: list[CoordinatorEffect] = []
        if now - self._asked_at >= self._run.timeouts.retry_s:
            effects += self._ask(now)
        for index, work in tuple(self._shares.items()):
            replica = self._run.registry.replicas[index]
            if self._lacks(work) and now - replica.progress_at >= replica.stall_s:
                replica.progress_at = now
                effects += self._run.restart_stalled(replica, "minibatch of the validation done", now)
        return effects

    def validate(self) -> None:
        """Checks the invariants. Raises AssertionError."""
        assert not self._open.keys() & self._done.keys(), (self._open, self._done)
        assert self.action is not None or not self._shares, self._shares


def _ranges(units: Iterable[int]) -> tuple[UnitRange, ...]:
    """Returns ascending units as ranges."""
    found = Ranges()
    for unit in units:
        found.cover(unit, unit + 1)
    return tuple(found)
