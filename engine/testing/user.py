"""The user of a schedule: validations, callbacks that stop the run or change its learning rate, and limits.

A seed draws when the run stops, and what callbacks decide there. `StopModel` keeps what a run that goes on
knows of them, and checks each stop against what the schedule says of the parameters (E1 to E4).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import TYPE_CHECKING, Final

from partita.engine.drivers.paced import Pacing
from partita.engine.protocol.actions import Decision
from partita.engine.protocol.coordinator_effects import (
    CheckpointRequested,
    Commit,
    Decided,
    SetScale,
    Validated,
)
from partita.engine.testing.invariants import require

if TYPE_CHECKING:
    from partita.engine.testing.schedule import CoordinatorHost, Schedule

SCALES: Final = (1.0, 0.5, 2.0, 0.25, 4.0, 0.125, 8.0, 0.0625)
"""Factors of the learning rate, in the order in which callbacks set them: powers of two, whose products with
small whole numbers are exact.
"""


@dataclass(frozen=True, slots=True)
class User:
    """The draw of a seed.

    Attributes:
        pacing: when the run stops.
        changes: times at which callbacks set another learning rate, in seconds of virtual time.
        saves: times at which they ask for a checkpoint.
        stops: how many times they end the run, which then goes on.
        decide_s: the longest time of their decision.
    """

    pacing: Pacing = field(default_factory=Pacing)
    changes: tuple[float, ...] = ()
    saves: tuple[float, ...] = ()
    stops: int = 0
    decide_s: float = 0.0


def draw_user(seed: int, *, steps: int, chaos_s: float, has_rate: bool = True) -> User:
    """Draws the user of a run of so many steps, beside all else that a seed draws: in a third of the seeds.

    Args:
        seed: of the schedule.
        steps: of the run; a limit is one of them.
        chaos_s: how long faults happen.
        has_rate: whether callbacks change the learning rate.
    """
    random = Random(-97 - seed)
    if random.random() > 1 / 3:
        return User()
    minibatches = random.choice((0, 1, 2, 3, 5))
    every = random.choice((None, 1, 2, 3, 5)) if minibatches else None
    every_s = random.choice((None, None, 0.5, 3.0)) if minibatches and every is None else None
    changes = sorted(random.uniform(0.0, 1.5 * chaos_s) for _ in range(random.choice((0, 1, 2, 3))))
    return User(
        pacing=Pacing(
            minibatches=minibatches,
            asks=random.random() < 0.5,
            every=every,
            every_s=every_s,
            most=random.randint(1, steps) if random.random() < 0.3 else None,
        ),
        changes=tuple(changes) if has_rate else (),
        saves=tuple(random.uniform(0.0, chaos_s) for _ in range(random.choice((0, 0, 1)))),
        stops=random.choice((0, 0, 1, 2)),
        decide_s=random.choice((0.0, 0.0, 0.5, 3.0)),
    )


class StopModel:
    """The reference of a schedule's stops, and the callbacks that decide there.

    Attributes:
        user: of the seed.
        pacing: of the present run.
        scales: all factors of the learning rate so far, each another one.
        validated: the last stop that is over; -1: none.
        reason: why the callbacks have ended the present run; "": they have not.
    """

    def __init__(self, schedule: Schedule, user: User, *, has_rate: bool = True) -> None:
        self.user, self.pacing = user, user.pacing
        self.scales: list[float] = [1.0]
        self.validated, self.reason = -1, ""
        self._schedule = schedule
        self._random = schedule.world.stops
        self._has_rate = has_rate
        self._stops_left = user.stops
        self._least_scale = 0  # place of the oldest factor that a step behind the last stop may have
        self._saved: dict[int, tuple[int, float]] = {}  # by checkpoint

    @property
    def scale(self) -> float:
        """The factor of the learning rate that was set last."""
        return self.scales[-1]

    def plan(self) -> None:
        """Sets when callbacks act between stops."""
        world = self._schedule.world
        for time in self.user.changes:
            world.at(time, None, self._change, None)
        for time in self.user.saves:
            world.at(time, None, self._save, None)

    # Between stops.

    def _change(self, _: object) -> None:
        coordinator = self._schedule.coordinator
        if coordinator.alive:
            coordinator.later(0.0, self._set_scale, coordinator)

    def _set_scale(self, coordinator: CoordinatorHost) -> None:
        """Sets a factor that no run had before, while there is one."""
        if len(self.scales) < len(SCALES):
            self.scales.append(SCALES[len(self.scales)])
            coordinator.world.note(coordinator, "sets the learning rate's factor", self.scale)
            coordinator.on_event(SetScale(self.scale))

    def _save(self, _: object) -> None:
        coordinator = self._schedule.coordinator
        coordinator.later(0.0, coordinator.on_event, CheckpointRequested())

    def require_scale(self, who: object, scale: float, *, since: int = 0, behind_stop: bool = False) -> int:
        """Requires that a step has a factor of the learning rate that was in force (L1).

        Args:
            who: computes it.
            scale: of the step.
            since: place of the factor of its step before.
            behind_stop: the step follows the last stop.

        Returns:
            The place of the factor among all.
        """
        least = max(since, self._least_scale if behind_stop else 0)
        places = [n for n, one in enumerate(self.scales) if one == scale and n >= least]
        require(bool(places), "L1", who, "has the factor", scale, "and is at", least, "of", self.scales)
        return places[0]

    # Stops.

    def stops(self, coordinator: CoordinatorHost, stop: Validated) -> None:
        """Checks a stop, and decides some time later how the run goes on."""
        world, action = self._schedule.world, stop.action
        world.note(coordinator, "stops", stop)
        require(not self.reason, "E4", stop, "after", self.reason)
        is_next = action.at > self.validated - (self.pacing.every_s is not None)  # asks for the time first
        require(is_next, "E3", stop, "comes again after", self.validated)
        require(len(stop.sums) == action.minibatches, "E1", stop, "of", action.minibatches, "minibatches")
        if self._schedule.hostility is None:
            for unit, parts in enumerate(stop.sums):
                self._require_minibatch(unit, parts)
        self._schedule.check_stop(action.at)
        self._schedule.extend()
        world.at(world.now + self.user.decide_s * self._random.random(), coordinator, self._decide, stop)

    def _require_minibatch(self, unit: int, parts: Sequence[Sequence[float]]) -> None:
        machines = self._schedule.environment.topology.machines
        require(len(parts) == machines, "E1", "minibatch", unit, "has", parts, "of", machines, "parts")
        for machine, (loss, correct, *parameters) in enumerate(parts):
            named = (loss, correct) == (unit, machine)
            require(named, "E1", "minibatch", unit, "of machine", machine, "is", (loss, correct))
            wanted = self._schedule.agreed_parameters(machine)
            agrees = wanted is None or parameters == [*wanted]
            about = "machine", machine, "evaluates minibatch", unit
            require(agrees, "E2", *about, "with", parameters, "and not with", wanted)

    def _decide(self, stop: Validated) -> None:
        coordinator, draw = self._schedule.coordinator, self._random
        self.validated = max(self.validated, stop.action.at)
        if self._has_rate and draw.random() < 0.3:
            self._set_scale(coordinator)
        self._least_scale = len(self.scales) - 1
        if self._stops_left and draw.random() < 0.3:
            self._stops_left -= 1
            self.reason = f"the callbacks end the run at {stop.action.at}"
        decision = Decision(draw.random() < 0.2, self.reason, self._schedule.world.now)
        coordinator.world.note(coordinator, "is given", decision)
        coordinator.on_event(Decided(decision))

    # Runs that go on.

    def require_end(self, position: int, *, limit: int) -> None:
        """Requires that a complete run ends at its limit, or where callbacks have ended it (E4). The next run
        has no limit.
        """
        wanted = self.validated if self.reason else limit
        require(position == wanted, "E4", "the run ends at", position, "and not at", wanted)
        self.pacing = replace(self.pacing, most=None)

    def commits(self, order: Commit) -> None:
        """Notes the state of callbacks that belongs to a checkpoint: of the last stop that it is behind."""
        validated = min(self.validated, self._schedule.position_of(order))
        self._saved[order.checkpoint] = validated, self.scale

    def resumes(self, checkpoint: int | None, position: int) -> None:
        """Goes on from the state in a checkpoint, which holds examples, or iterations, up to a position.

        A factor that was set after it is set no more.
        """
        self.reason = ""
        validated, scale = self._saved[checkpoint] if checkpoint is not None else (-1, 1.0)
        self.validated = max(validated, position - 1)
        if scale != self.scale:
            self.scales.append(scale)
        self._least_scale = len(self.scales) - 1
