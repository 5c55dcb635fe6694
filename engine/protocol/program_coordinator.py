"""The coordinator of replicas that run a driver's program, without shards: work, views and safe points.

Views: when replicas have become ready or have left, all parts are asked how far they are, and the next view
is published when all have answered. Nothing is decided while a replica of the last view is started again: the
others wait for it at their next exchange. Safe points: a checkpoint is of the state after a step a little
ahead of all reports, written by the parts of the first replica. What is not answered is repeated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from msgspec.structs import replace
from typing_extensions import override

from partita.engine.protocol import messages as m
from partita.engine.protocol import replica_messages as rm
from partita.engine.protocol.actions import Checkpoint, CoordinatorAction, Plan, Work
from partita.engine.protocol.coordinator import Coordinator
from partita.engine.protocol.coordinator_effects import (
    CoordinatorEffect,
    CoordinatorEvent,
    EndRun,
    Progress,
    RunSettings,
    Warn,
)
from partita.engine.protocol.events import Send
from partita.engine.protocol.host_lifecycle import Phase
from partita.engine.protocol.host_registry import HostRecord, ReplicaRecord
from partita.engine.protocol.names import Topology, machine_of
from partita.engine.protocol.program_reports import LATEST_REPORT_S
from partita.engine.protocol.view_change import ViewChange
from partita.engine.protocol.views import JoinedBatches, Outline, Positions

Schedule: TypeAlias = Callable[[Outline], Plan]
"""The type of a driver's method `coordinator`."""

AHEAD_S: Final = 0.5
"""A checkpoint is of a step so far ahead that parts receive `Save` before they reach it."""


@dataclass(slots=True)
class Pace:
    """The steps that were reported last, and how fast they come."""

    step: int = 0
    at: float = 0.0
    per_s: float = 0.0

    def note(self, step: int, now: float) -> None:
        """Notes that a replica has done more steps than any before."""
        if step <= self.step:
            return  # another replica's report of steps that are noted
        passed_s = now - self.at
        if passed_s > 0:
            self.per_s = max((step - self.step) / passed_s, self.per_s / 2)
        self.step, self.at = step, now


class ProgramCoordinator(Coordinator):
    """Supervises one run of a driver's program."""

    def __init__(
        self,
        schedule: Schedule,
        outline: Outline,
        topology: Topology,
        *,
        done: int = 0,
        sharded: bool = False,
        settings: RunSettings | None = None,
    ) -> None:
        """Creates a run that has not started; `Opened` starts it.

        Args:
            schedule: the driver's program for the coordinator.
            outline: the run.
            topology: how many hosts of each kind; no shards.
            done: steps of all replicas that a checkpoint holds, which is resumed.
            sharded: no replica has the whole state, so that a death leads back to the last checkpoint.
            settings: of the run.
        """
        assert topology.collective, topology
        self._batches: Final = JoinedBatches(outline.examples, outline.batch)
        self._outline: Final = outline
        self._sharded: Final = sharded
        until = outline.epochs * outline.examples
        steps = self._batches.steps(0, until, topology.replicas)
        super().__init__(topology, settings, done=(min(done, steps),) * topology.replicas, steps=steps)
        self._machines: Final = topology.machines
        self._position = self._batches.position(0, min(done, steps), topology.replicas)
        self._positions: Final = Positions(self._batches, self._position)
        self._plan: Plan = schedule(outline)
        self._action: CoordinatorAction | None = None
        self._until = 0  # the position at which the work that was yielded ends
        self._view: rm.View | None = None
        self._views: tuple[rm.View, ...] = ()  # the same, with the places of each machine
        self._last_step = 0  # after which the work of the view is done
        self._unjoined: dict[str, HostRecord] = {}
        self._finished: set[str] = set()
        self._change: ViewChange | None = None
        self._wants_view = False
        self._numbers = 0  # of views
        self._asked_at = float("-inf")
        self._pace = Pace()
        self._missed = 0  # checkpoints in a row that came too late for their step
        self._writers: tuple[HostRecord, ...] = ()
        self._round_step = 0
        self._next_action(None)

    @property
    def steps_done(self) -> tuple[int, ...]:
        """Steps of each replica, as if all had taken part from the first step on."""
        if self._view is None:
            return tuple(replica.first for replica in self._registry.replicas)
        return self._steps_after(max(self._pace.step, self._view.step))

    def _steps_after(self, step: int) -> tuple[int, ...]:
        """Returns the steps of each replica after one of the view, as if all had always taken part."""
        replicas = len(self._registry.replicas)
        return (self._batches.steps(0, self._positions.of(step), replicas),) * replicas

    @override
    def receive(self, event: CoordinatorEvent, now: float) -> list[CoordinatorEffect]:
        """See `Coordinator`; several changes of the hosts at once make one view."""
        effects = super().receive(event, now)
        if self._wants_view and self._may_change():
            effects += self._announce(now)
        return effects

    # The driver's program.

    def _next_action(self, result: int | None) -> None:
        """Runs the driver's program up to work that is not done, or a checkpoint; None: it has ended."""
        while True:
            try:
                action = self._plan.send(result)
            except StopIteration:
                self._action = None
                return
            self._action, result = action, None
            if isinstance(action, Checkpoint):
                return
            more = action.examples or 0
            more += (action.epochs or 0) * self._outline.examples
            self._until += more
            if self._until > self._position:
                return

    # Views.

    def _joined(self, replica: ReplicaRecord, now: float) -> list[CoordinatorEffect]:
        self._wants_view |= self.phase is not Phase.STOPPING
        return []

    def _may_change(self) -> bool:
        """Returns whether the next view can be announced: nobody of the last one is awaited."""
        members = self._next_members
        if not members:
            return False
        before = members if self._view is None else self._view.members
        missing = [self._registry.replicas[r] for r in before if r not in members]
        if self.phase is Phase.STOPPING:
            return self._checkpoints.round is None and not (self._sharded and missing)
        if self._view is None and len(members) < self._least:
            return False
        return all(any(part.has_ended for part in replica.parts) for replica in missing)

    @property
    def _next_members(self) -> tuple[int, ...]:
        """The replicas of a view that is announced now; after Ctrl-C nobody joins."""
        joins = self.phase is not Phase.STOPPING or self._view is None
        return tuple(
            sorted(r for r in self.seats.seated if joins or (self._view and r in self._view.members))
        )

    def _announce(self, now: float) -> list[CoordinatorEffect]:
        self._wants_view = False
        self._drop_round()
        self._numbers += 1
        self._change = ViewChange(self._numbers, self._next_members, self._machines, now)
        return self._ask(self._change)

    @staticmethod
    def _ask(change: ViewChange) -> list[CoordinatorEffect]:
        return [Send(name, change.question) for name in change.missing]

    def _drop_round(self) -> None:
        """Drops a checkpoint under way, and begins another one soon: its step may not come again."""
        if self._checkpoints.round is not None:
            self._next_round_at -= self._timeouts.checkpoint_every_s or 0.0
        self._checkpoints.round = None
        if self.phase is Phase.FINISHING:
            self.phase = Phase.RUNNING

    def _publish_view(self, change: ViewChange, now: float) -> list[CoordinatorEffect]:
        self._change = None
        agreed = change.agree()
        if agreed is None:
            return self._restart_all("no replica has a whole state any more", now)
        self._position = position = self._positions.settle(agreed.step, len(change.members))
        self._view = rm.View(
            number=change.number,
            members=change.members,
            directory=self._directories.revision,
            step=agreed.step,
            position=position,
            until=position if self.phase is Phase.STOPPING else max(self._until, position),
            copies=agreed.copies,
        )
        self._views = tuple(
            replace(self._view, places=self._places(change.members, machine))
            for machine in range(self._machines)
        )
        self._last_step = agreed.step + self._batches.steps(position, self._view.until, len(change.members))
        self._finished.clear()
        self._pace = Pace(agreed.step, now)
        parts = [part for r in change.members for part in self._registry.replicas[r].parts]
        for part in parts:
            part.step = agreed.step
        for replica in change.members:
            self._registry.replicas[replica].progress_at = now
        self._unjoined = {part.name: part for part in parts}
        return self._send_view(now)

    def _places(self, members: tuple[int, ...], machine: int) -> tuple[int, ...]:
        """Returns a number for each member's part of a machine, equal where these share memory."""
        labels = [self._registry.replicas[replica].parts[machine].machine for replica in members]
        numbers: dict[str, int] = {}
        for n, label in enumerate(labels):
            numbers.setdefault(label or str(n), len(numbers))
        if len(numbers) == len(labels):
            return ()
        return tuple(numbers[label or str(n)] for n, label in enumerate(labels))

    def _send_view(self, now: float) -> list[CoordinatorEffect]:
        self._asked_at = now
        return [Send(name, self._views[machine_of(name)]) for name in self._unjoined]

    def _go_on(self, now: float) -> list[CoordinatorEffect]:
        if self.phase is Phase.STOPPING and self._checkpoints.round is None:
            self._left()
        return self._finish_if_complete(now)

    # Work.

    def _work_message(self, host: HostRecord, message: object, now: float) -> list[CoordinatorEffect]:
        replica = self._registry.replica_of(host)
        assert replica is not None, host
        match message:
            case rm.Paused() if self._change is not None and self._change.take(host.name, message):
                return self._publish_view(self._change, now)
            case rm.Joined(view=view) if self._view is not None and view == self._view.number:
                self._unjoined.pop(host.name, None)
            case m.Report():
                return self._report(host, replica, message, now)
            case m.Finished(step=step) if self._is_last(step):
                host.step = self._pace.step = step
                self._finished.add(host.name)
                return self._finish_if_complete(now)
        return []

    def _is_last(self, step: int) -> bool:
        return self._change is None and self._view is not None and step == self._last_step

    def _report(
        self, host: HostRecord, replica: ReplicaRecord, report: m.Report, now: float
    ) -> list[CoordinatorEffect]:
        if self._view is None or not host.step < report.step <= self._last_step:
            return []  # a duplicate, or one that was overtaken
        before = replica.steps_done
        host.step = report.step
        if host.step > host.furthest:
            host.furthest, host.deaths, replica.left = host.step, 0, 0
        if replica.steps_done > before:
            replica.progress_at, replica.stall_s = now, self._timeouts.stall_s
            if replica.steps_done > self._pace.step:
                self._pace.note(replica.steps_done, now)
            self._extend_stop(now)
        sums = {"loss": report.loss, "correct": report.correct}
        return [Progress(host.name, report.step, report.examples, sums)]

    @property
    def _is_complete(self) -> bool:
        """Whether the work that was yielded is done, and reported by every part of the view."""
        if self._view is None or self._change is not None or self._wants_view:
            return False
        return len(self._finished) == len(self._view.members) * self._machines

    def _finish_if_complete(self, now: float) -> list[CoordinatorEffect]:
        if self.phase is not Phase.RUNNING or not self._is_complete:
            return []
        if isinstance(self._action, Work):
            self._position = self._until
            self._next_action(None)
            if isinstance(self._action, Work):
                self._wants_view = True
                return []
        if now < self._checkpoints.retry_at or self._checkpoints.round is not None:
            return []
        if self._action is None:
            self.phase = Phase.FINISHING
        return self._begin_round(now)

    # Checkpoints.

    def _begin_round(self, now: float) -> list[CoordinatorEffect]:
        view = self._view
        if view is None or self._change is not None or self._wants_view:
            return []
        ahead_s = min(now - self._pace.at, LATEST_REPORT_S) + AHEAD_S * (1 << min(self._missed, 8))
        step = self._last_step
        if not self._is_complete:
            step = min(step, max(self._pace.step, view.step) + math.ceil(self._pace.per_s * ahead_s) + 1)
        self._round_step = step
        members = view.members if self._sharded else view.members[:1]
        self._writers = tuple(part for r in members for part in self._registry.replicas[r].parts)
        steps = self._steps_after(step)
        # After Ctrl-C a view ends where it begins, which may be before the work that was done already.
        last = self._is_complete and self._action is None and self._positions.of(step) >= self._until
        return [*self._new_round(now, steps=steps, is_last=last, step=step).ask(now)]

    @override
    def _files_of(self) -> tuple[HostRecord, ...]:
        return self._writers

    def _last_round(self, now: float) -> list[CoordinatorEffect]:
        """Has all replicas that are alive end their work now, in a last view; its state is the checkpoint.

        A view would cut a step whose ranges are being collected: a sharded run goes on to a safe point.
        """
        if self._sharded and self._view is not None:
            return [] if self._checkpoints.round is not None else self._begin_round(now)
        self._wants_view = self._checkpoints.round is None and self._change is None
        return []

    @override
    def _handle(self, host: HostRecord, message: object, now: float) -> list[CoordinatorEffect]:
        if isinstance(message, m.SaveFailed) and message.late:
            return self._postpone(host, message, now)
        return super()._handle(host, message, now)

    def _postpone(self, host: HostRecord, late: m.SaveFailed, now: float) -> list[CoordinatorEffect]:
        """Chooses a later step: a part was faster than its reports."""
        if self._checkpoints.of_round(host.name, late) is None:
            return []
        self._missed += 1
        self._checkpoints.round = None
        return self._begin_round(now)

    @override
    def _committed(self, checkpoint: int, now: float) -> list[CoordinatorEffect]:
        self._missed = 0
        self._pace.step = max(self._pace.step, self._round_step)
        effects = super()._committed(checkpoint, now)
        waited_for = isinstance(self._action, Checkpoint) and self._round_step == self._last_step
        if self.phase is Phase.RUNNING and waited_for and self._is_complete:
            self._next_action(checkpoint)
            self._wants_view = isinstance(self._action, Work)
            effects += self._finish_if_complete(now)
        return effects

    def _result(self, *, complete: bool) -> EndRun:
        return EndRun(self.steps_done, self._checkpoints.committed, self.lost, complete)

    # Death.

    def _is_dispensable(self, host: HostRecord) -> bool:
        if self.phase is Phase.STOPPING and self._checkpoints.round is None:
            return True
        return self.phase in (Phase.FINISHING, Phase.STOPPING) and host not in self._writers

    def _restart_replica(self, replica: ReplicaRecord, reason: str, now: float) -> list[CoordinatorEffect]:
        if self._sharded:
            return self._restart_all(reason, now)
        self._left()
        others = "" if self.is_elastic else ", and the others wait for it"
        return [
            Warn(f"{reason}; replica {replica.index} is started again{others}"),
            self._relaunch(replica.parts, reason, now),
        ]

    @override
    def _has_left(self, replica: ReplicaRecord, now: float) -> list[CoordinatorEffect]:
        """Has the others go on in a view without it."""
        if self._sharded:
            return self._restart_all(f"replica {replica.index} had a part of the state", now)
        self._left()
        self._wants_view = True
        return []

    def _restart_all(self, reason: str, now: float) -> list[CoordinatorEffect]:
        self._left()
        committed = self._checkpoints.committed
        start = "the start" if committed is None else f"checkpoint {committed}"
        parts = [part for replica in self._registry.replicas for part in replica.parts if not part.has_ended]
        return [
            Warn(f"{reason}; all replicas are started again from {start}"),
            self._relaunch(parts, reason, now),
        ]

    def _left(self) -> None:
        """Drops what a replica that has died was needed for."""
        self._change = None
        self._finished.clear()
        self._drop_round()
        self._wants_view |= self.phase is Phase.STOPPING

    # Time.

    def _watch_work(self, now: float) -> list[CoordinatorEffect]:
        effects: list[CoordinatorEffect] = []
        if self._change is not None and now - self._change.asked_at >= self._timeouts.retry_s:
            self._change.asked_at = now
            effects += self._ask(self._change)
        if self._unjoined and now - self._asked_at >= self._timeouts.retry_s:
            effects += self._send_view(now)
        effects += self._watch_progress(now)
        effects += self._finish_if_complete(now)
        due_at = self._checkpoints.retry_at if self.phase is Phase.STOPPING else self._next_round_at
        none = self._checkpoints.round is None and self.phase in (Phase.RUNNING, Phase.STOPPING)
        if none and now >= max(due_at, self._checkpoints.retry_at):
            effects += self._begin_round(now)
        return effects

    def _watch_progress(self, now: float) -> list[CoordinatorEffect]:
        """Restarts a replica that nobody else holds up, when no step has been reported for too long."""
        if now - self._pace.at < self._timeouts.stall_s:
            return []
        if self._view is None or self.phase is not Phase.RUNNING or self._is_complete:
            return []
        replicas = [self._registry.replicas[r] for r in self._view.members if r in self.seats.seated]
        if len(replicas) < len(self._view.members):
            return []
        late = [r for r in replicas if now - r.progress_at >= r.stall_s]
        if len(late) < len(replicas):
            return []
        waiting = {part for part, _, _ in self._waits}
        suspects = [r for r in late if not any(part.name in waiting for part in r.parts)] or late
        slowest = min(suspects, key=lambda r: r.steps_done)
        for replica in replicas:
            replica.progress_at = now
        return self._restart_stalled(slowest, "step reported", now)

    def validate(self) -> None:
        """Checks the invariants. Raises AssertionError."""
        super().validate()
        if self._view is not None:
            assert self._view.number <= self._numbers
        assert self._change is None or self._change.number == self._numbers
