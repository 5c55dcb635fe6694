"""Replicas that do their steps together, without shards: views and safe points.

Views: when replicas have become ready or have left, all parts are asked how far they are, and the next view
is published when all have answered. Nothing is decided while a replica of the last view is started again: the
others wait for it at their next exchange. Safe points: a checkpoint is of the state after a step a little
ahead of all reports, written by the parts of the first replica. What is not answered is repeated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace
from typing_extensions import override

from partita.engine.protocol import messages as m
from partita.engine.protocol import replica_messages as rm
from partita.engine.protocol.coordinator_effects import CoordinatorEffect, Progress, Warn
from partita.engine.protocol.events import Send
from partita.engine.protocol.host_lifecycle import Phase
from partita.engine.protocol.host_registry import HostRecord, ReplicaRecord
from partita.engine.protocol.joined_book import JoinedBook
from partita.engine.protocol.names import machine_of
from partita.engine.protocol.program_reports import LATEST_REPORT_S
from partita.engine.protocol.supervision import Supervision
from partita.engine.protocol.view_change import Agreement, ViewChange
from partita.engine.protocol.views import JoinedBatches
from partita.engine.protocol.work_mode import WorkMode

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


class JoinedMode(WorkMode):
    """The work of replicas that exchange sums in each step."""

    def __init__(
        self,
        *,
        position: int = 0,
        sharded: bool = False,
        groups: int = 1,
        describe: Callable[[Sequence[Sequence[str]]], str] = lambda computers: "",
    ) -> None:
        """Creates the work of a run.

        Args:
            position: examples, from the first epoch on, that a checkpoint holds, which is resumed.
            sharded: no replica has the whole state, so that a death leads back to the last checkpoint.
            groups: of replicas with parameters of their own, see `ViewChange`; those of the first are saved.
            describe: makes a line for the user of the labels of computers: for each machine of the plan, one
                of each replica of a view. A view that changes the line shows it.
        """
        self._describe: Final = describe
        self._described = ""
        self._start: Final = position
        self._sharded: Final = sharded
        self._groups: Final = groups
        self._processes: dict[str, int] = {}  # incarnations of the parts in the last view
        self._view: rm.View | None = None
        self._views: tuple[rm.View, ...] = ()  # the same, with the places of each machine
        self._last_step = 0  # after which what the view has leased is done
        self._unjoined: dict[str, HostRecord] = {}
        self._finished: set[str] = set()
        self._change: ViewChange | None = None
        self._wants_view = False
        self._numbers = 0  # of views
        self._asked_at = float("-inf")
        self._pace = Pace()
        self._missed = 0  # checkpoints in a row that came too late for their step
        self._writers: tuple[HostRecord, ...] = ()
        self._round_step = self._saved_step = 0  # of the checkpoint under way, and of the last one

    @override
    def attach(self, run: Supervision) -> None:
        super().attach(run)
        outline, self._replicas, self._scale = run.outline, run.registry.replicas, run.first_scale
        self._machines = len(self._replicas[0].parts)
        self._work = JoinedBook(JoinedBatches(outline.examples, outline.batch), self._start)

    @property
    @override
    def steps_done(self) -> tuple[int, ...]:
        """Steps of each replica, as if all had taken part from the first step on."""
        if self._view is None:
            return self._steps_to(self._start)
        return self._steps_to(self._work.position(max(self._pace.step, self._view.step)))

    def _steps_to(self, position: int) -> tuple[int, ...]:
        """Returns the steps of each replica up to a position, as if all had always taken part."""
        replicas = len(self._replicas)
        return (self._work.batches.steps(0, position, replicas),) * replicas

    @override
    def extend(self) -> bool:
        self._work.extend(self.run.until)
        done = self._view.until if self._view is not None and self.is_complete else self._work.done.size
        return self._work.units > done

    @override
    def begin_work(self, now: float) -> list[CoordinatorEffect]:
        self._wants_view = True
        return []

    # Views.

    @override
    def joined(self, replica: ReplicaRecord, now: float) -> list[CoordinatorEffect]:
        self._wants_view |= self.run.phase is not Phase.STOPPING
        return []

    @override
    def settle(self, now: float) -> list[CoordinatorEffect]:
        """Announces a view; several changes of the hosts at once make one."""
        return self._announce(now) if self._wants_view and self._may_change() else []

    def _may_change(self) -> bool:
        """Returns whether the next view can be announced: nobody of the last one is awaited."""
        members = self._next_members
        if not members:
            return False
        before = members if self._view is None else self._view.members
        missing = [self._replicas[r] for r in before if r not in members]
        if self.run.phase is Phase.STOPPING:
            return self.run.checkpoints.round is None and not (self._sharded and missing)
        if self._view is None and len(members) < self.run.least:
            return False
        return all(any(part.has_ended for part in replica.parts) for replica in missing)

    @property
    def _next_members(self) -> tuple[int, ...]:
        """The replicas of a view that is announced now; after Ctrl-C nobody joins."""
        joins = self.run.phase is not Phase.STOPPING or self._view is None
        return tuple(
            sorted(r for r in self.run.seats.seated if joins or (self._view and r in self._view.members))
        )

    def _announce(self, now: float) -> list[CoordinatorEffect]:
        self._wants_view = False
        self._drop_round()
        self._numbers += 1
        self._change = ViewChange(self._numbers, self._next_members, self._machines, now, self._groups)
        return self._ask(self._change)

    @staticmethod
    def _ask(change: ViewChange) -> list[CoordinatorEffect]:
        return [Send(name, change.question) for name in change.missing]

    def _drop_round(self) -> None:
        """Drops a checkpoint under way, and begins another one soon: its step may not come again."""
        run = self.run
        if run.checkpoints.round is not None:
            run.next_round_at -= run.timeouts.checkpoint_every_s or 0.0
        run.checkpoints.round = None
        if run.phase is Phase.FINISHING:
            run.phase = Phase.RUNNING

    def _publish_view(self, change: ViewChange, now: float) -> list[CoordinatorEffect]:
        self._change = None
        agreed, run = change.agree(), self.run
        if agreed is None:
            return self._restart_all("no whole state is left", now)
        stops = run.phase is Phase.STOPPING
        leased = self._work.renew(agreed.step, len(change.members), stops=stops)
        parts = [part for r in change.members for part in self._replicas[r].parts]
        anew = self._is_anew(agreed, {part.name: part.incarnation for part in parts})
        self._view = rm.View(
            number=change.number,
            members=change.members,
            directory=run.directories.revision,
            step=agreed.step,
            position=leased.start,
            until=leased.stop,
            copies=agreed.copies,
            scale=self._scale,
            points=agreed.points,
            anew=anew,
            loss_scale=agreed.loss_scale,
        )
        self._views = tuple(
            replace(self._view, places=self._places(change.members, machine))
            for machine in range(self._machines)
        )
        self._last_step = leased.end
        self._finished.clear()
        self._pace = Pace(agreed.step, now)
        for part in parts:
            part.step = agreed.step
        for replica in change.members:
            self._replicas[replica].progress_at = now
        self._unjoined = {part.name: part for part in parts}
        return [*self._announce_computers(change.members), *self._send_view(now)]

    def _announce_computers(self, members: tuple[int, ...]) -> list[CoordinatorEffect]:
        """Shows what the driver says of where the replicas of a view run, where that is new."""
        apart = [str(n) for n in range(len(members))]
        places = (self._places(members, machine) for machine in range(self._machines))
        text = self._describe([[str(n) for n in found] if found else apart for found in places])
        before, self._described = self._described, text
        return [Warn(text)] if text and text != before else []

    def _is_anew(self, agreed: Agreement, processes: dict[str, int]) -> bool:
        """Returns whether a state comes from elsewhere, or has and is at no safe point since."""
        before, self._processes = self._processes, processes
        last = self._view
        is_there = last is not None and (last.step, last.points) == (agreed.step, agreed.points)
        return bool(agreed.copies) or before != processes or (is_there and last is not None and last.anew)

    def _places(self, members: tuple[int, ...], machine: int) -> tuple[int, ...]:
        """Returns a number for each member's part of a machine, equal where these share memory."""
        labels = [self._replicas[replica].parts[machine].machine for replica in members]
        numbers: dict[str, int] = {}
        for n, label in enumerate(labels):
            numbers.setdefault(label or str(n), len(numbers))
        if len(numbers) == len(labels):
            return ()
        return tuple(numbers[label or str(n)] for n, label in enumerate(labels))

    def _send_view(self, now: float) -> list[CoordinatorEffect]:
        self._asked_at = now
        return [Send(name, self._views[machine_of(name)]) for name in self._unjoined]

    @override
    def go_on(self, now: float) -> list[CoordinatorEffect]:
        if self.run.phase is Phase.STOPPING and self.run.checkpoints.round is None:
            self._left()
        return super().go_on(now)

    # Work.

    @override
    def receive(self, host: HostRecord, message: object, now: float) -> list[CoordinatorEffect]:
        match message:
            case rm.Paused() if self._change is not None and self._change.take(host.name, message):
                return self._publish_view(self._change, now)
            case rm.Joined(view=view) if self._view is not None and view == self._view.number:
                self._unjoined.pop(host.name, None)
            case m.Report():
                return self._report(host, message, now)
            case m.Finished(step=step) if self._is_last(step):
                host.step = self._pace.step = step
                self._finished.add(host.name)
                return self.run.finish_if_complete(now)
        return []

    def _is_last(self, step: int) -> bool:
        return self._change is None and self._view is not None and step == self._last_step

    def _report(self, host: HostRecord, report: m.Report, now: float) -> list[CoordinatorEffect]:
        replica = self.run.registry.replica_of(host)
        assert replica is not None, host
        if self._view is None or not host.step < report.step <= self._last_step:
            return []  # a duplicate, or one that was overtaken
        before = replica.steps_done
        host.step = report.step
        if host.step > host.furthest:
            host.furthest, host.deaths, replica.left = host.step, 0, 0
        if replica.steps_done > before:
            replica.progress_at, replica.stall_s = now, self.run.timeouts.stall_s
            self._pace.note(replica.steps_done, now)
            self.run.extend_stop(now)
        sums = {"loss": report.loss, "correct": report.correct}
        return [
            Progress(host.name, report.step, report.examples, sums, further=report.sums, read=report.read)
        ]

    @property
    @override
    def is_complete(self) -> bool:
        """Returns whether the work that was yielded is done, and reported by every part of the view."""
        if self._view is None or self._change is not None or self._wants_view:
            return False
        return len(self._finished) == len(self._view.members) * self._machines

    # Checkpoints.

    @override
    def begin_round(self, now: float) -> list[CoordinatorEffect]:
        view = self._view
        if view is None or self._change is not None or self._wants_view:
            return []
        ahead_s = min(now - self._pace.at, LATEST_REPORT_S) + AHEAD_S * (1 << min(self._missed, 8))
        step, is_complete = self._last_step, self.is_complete
        if not is_complete:
            step = min(step, max(self._pace.step, view.step) + math.ceil(self._pace.per_s * ahead_s) + 1)
        self._round_step = step
        members = view.members if self._sharded else view.members[:1]
        self._writers = tuple(part for r in members for part in self._replicas[r].parts)
        # After Ctrl-C a view ends where it begins, which may be before the work that was done already.
        position = self._work.position(step)
        whole, done = is_complete and position >= self.run.until, ((0, position),) if position else ()
        steps = self._steps_to(position)
        return [*self.run.new_round(self._writers, steps, now, whole=whole, step=step, done=done).ask(now)]

    @override
    def last_round(self, now: float) -> list[CoordinatorEffect]:
        """Has all replicas that are alive end their work now, in a last view; its state is the checkpoint.

        A view would cut a step whose ranges are being collected: a sharded run goes on to a safe point.
        """
        if self._sharded and self._view is not None:
            return super().last_round(now)
        self._wants_view = self.run.checkpoints.round is None and self._change is None
        return []

    @override
    def postpone(self, now: float) -> list[CoordinatorEffect]:
        self._missed += 1
        self.run.checkpoints.round = None
        return self.begin_round(now)

    @override
    def committed(self) -> None:
        self._missed = 0
        self._pace.step = max(self._pace.step, self._round_step)
        self._work.forget(self._saved_step)  # a survivor may be a step behind the newest checkpoint
        self._saved_step = self._round_step

    @override
    def set_scale(self, scale: float, now: float) -> list[CoordinatorEffect]:
        """Publishes it with the next view, which comes soon; with sharded states when other work begins."""
        self._scale = scale
        self._wants_view |= self.run.phase is Phase.RUNNING and not self._sharded
        return []

    @property
    @override
    def validators(self) -> dict[int, tuple[int, ...]]:
        members = () if self._view is None else self._view.members
        seated = self.run.seats.seated.items()
        return {index: found for index, found in seated if index in members and index % self._groups == 0}

    @property
    @override
    def validation_basis(self) -> object:
        return self._numbers

    # Death.

    @override
    def is_dispensable(self, host: HostRecord) -> bool:
        if self.run.phase is Phase.STOPPING and self.run.checkpoints.round is None:
            return True
        return self.run.phase in (Phase.FINISHING, Phase.STOPPING) and host not in self._writers

    @override
    def restart_part(
        self, host: HostRecord, replica: ReplicaRecord, reason: str, now: float
    ) -> list[CoordinatorEffect]:
        """Replaces the one part: the others of its replica keep their state, which may be the last copy."""
        if self._sharded or len(replica.parts) == 1:
            return self.restart_replica(replica, reason, now)
        self._left()
        others = "" if self.run.is_elastic else ", and the others wait for it"
        again = self.run.relaunch((host,), reason, now)
        return [Warn(f"{reason}; {host.name} is started again{others}"), again]

    @override
    def restart_replica(self, replica: ReplicaRecord, reason: str, now: float) -> list[CoordinatorEffect]:
        if self._sharded:
            return self._restart_all(reason, now)
        self._left()
        others = "" if self.run.is_elastic else ", and the others wait for it"
        return self.restarted(replica, f"replica {replica.index} is started again{others}", reason, now)

    @override
    def has_left(self, replica: ReplicaRecord, now: float) -> list[CoordinatorEffect]:
        """Has the others go on in a view without it."""
        if self._sharded:
            return self._restart_all(f"replica {replica.index} had a part of the state", now)
        self._left()
        self._wants_view = True
        return []

    def _restart_all(self, reason: str, now: float) -> list[CoordinatorEffect]:
        self._left()
        parts = [part for replica in self._replicas for part in replica.parts if not part.has_ended]
        return [
            Warn(f"{reason}; all replicas are started again from {self.run.start_text}"),
            self.run.relaunch(parts, reason, now),
        ]

    def _left(self) -> None:
        """Drops what a replica that has died was needed for."""
        self._change = None
        self._finished.clear()
        self._drop_round()
        self._wants_view |= self.run.phase is Phase.STOPPING

    # Time.

    @override
    def watch(self, now: float) -> list[CoordinatorEffect]:
        effects: list[CoordinatorEffect] = []
        retry_s = self.run.timeouts.retry_s
        if self._change is not None and now - self._change.asked_at >= retry_s:
            self._change.asked_at = now
            effects += self._ask(self._change)
        if self._unjoined and now - self._asked_at >= retry_s:
            effects += self._send_view(now)
        return effects + self._watch_progress(now)

    def _watch_progress(self, now: float) -> list[CoordinatorEffect]:
        """Restarts a replica that nobody else holds up, when no step has been reported for too long."""
        run = self.run
        if now - self._pace.at < run.timeouts.stall_s:
            return []
        if self._view is None or run.phase is not Phase.RUNNING or self.is_complete:
            return []
        replicas = [self._replicas[r] for r in self._view.members if r in run.seats.seated]
        if len(replicas) < len(self._view.members):
            return []
        late = [r for r in replicas if now - r.progress_at >= r.stall_s]
        if len(late) < len(replicas):
            return []
        waiting = {part for part, _, _ in run.waits}
        suspects = [r for r in late if not any(part.name in waiting for part in r.parts)] or late
        slowest = min(suspects, key=lambda r: r.steps_done)
        for replica in replicas:
            replica.progress_at = now
        return run.restart_stalled(slowest, "step reported", now)

    @override
    def validate(self) -> None:
        """Checks the invariants. Raises AssertionError."""
        assert self._view is None or self._view.number <= self._numbers
        assert self._change is None or self._change.number == self._numbers
        self._work.validate()
