"""Work that all replicas of a view do together (`View`): each step's examples are a joined batch.

It does what every part does in a run without shards, whatever the driver: pauses for a view and goes on under
it, counts its steps, and saves its state at the step that the coordinator names.

A view is announced by `Pause`. Each part then drops what it does and answers with the steps that its state
holds; the coordinator publishes the view when all have answered. A replica that is behind gets the state of
one that is not, and the generators start anew. No part of a replica changes its parameters before its other
parts have what they need to do so, too (`Reduced`): they can all reach the step that one of them has reached,
with nobody's help.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Any, ClassVar, Final

from typing_extensions import override

from partita.engine.protocol import actions as a
from partita.engine.protocol import messages as m
from partita.engine.protocol import replica_messages as rm
from partita.engine.protocol.checkpoint_messages import Save
from partita.engine.protocol.events import NotPersisted, Persisted, Received, Refuse, Send, Span
from partita.engine.protocol.host import PeersChanged
from partita.engine.protocol.names import COORDINATOR
from partita.engine.protocol.part import RESEND_S, Work
from partita.engine.protocol.program_effects import (
    PREDICTIONS,
    STEPS_OF_A_VIEW,
    Applied,
    ApplyUpdate,
    CombineVectors,
    CopyVector,
    DotsRead,
    PartSeat,
    RestartSteps,
    RunStep,
    StateReceived,
    StepDone,
)
from partita.engine.protocol.program_exchanges import MOST_EARLY, Exchanges
from partita.engine.protocol.program_kinds import ExchangeAction
from partita.engine.protocol.program_reports import ProgramReports
from partita.engine.protocol.program_saves import Saves
from partita.engine.protocol.teaching import Teaching
from partita.engine.protocol.views import JoinedBatches, Member


class Stage(Enum):
    """The stages of a part. Values: what it does."""

    PAUSED = "waits for a view"
    REACHING = "waits until it can reach all members of its view"
    COMPLETING = "ends the step that the view goes on from"
    COPYING = "receives or sends a state"
    AT_WORK = "runs its program"
    DONE = "has done all steps of its view"


_START: Final = "start"
"""The vector of the parameters before a step that may change them more than once."""

_OF_EXCHANGES: Final = (rm.PartialChunk, rm.FinalChunk, rm.ChunkRequest, rm.ExchangeAck)


class JoinedWork(Work):
    """The steps of a part in one view after another.

    Attributes:
        stage: of the part.
        step: steps that its state holds; None while another one's state replaces it.
        points: safe points of that state, after the first one of its step.
    """

    carries: ClassVar[tuple[type, ...]] = (a.Compute, a.Apply, a.Combine, a.Keep, a.Restore, a.SafePoint)
    takes: ClassVar[tuple[type, ...]] = (rm.Pause, rm.View, rm.Reduced, Save, *_OF_EXCHANGES)

    def __init__(self, seat: PartSeat, batches: JoinedBatches, *, retry_s: float = RESEND_S) -> None:
        """A part that waits for its first view.

        Args:
            seat: the part.
            batches: of the run.
            retry_s: seconds without an answer after which a message is sent again.
        """
        self.stage = Stage.PAUSED
        self.step: int | None = seat.step
        self.points = seat.points
        self._exchanges: Final = Exchanges(seat, retry_s=retry_s)
        self.others = (self._exchanges,)
        self._seat: Final = seat
        self._batches: Final = batches
        self._revision = 0
        self._peers: dict[str, int] = {}
        self._wanted = 0  # messages of older views have no effect
        self._pausing: int | None = None  # the view that was announced, until it is here
        self._view: rm.View | None = None
        self._member: Member | None = None
        self._updates = False  # the parameters are changing
        self._completes = False  # after a pause: it can end the step under way without other replicas
        self._changed = False  # since the last safe point: the state is of no step
        self._computes = False  # since the last safe point, or keeps: so the next one is of another step
        self._combined = False  # the same, by a program that may not exchange before its next safe point
        self._kept = False  # the parameters before the step are in "start", and may have changed since
        self._alone = False  # the state is this replica's, not that of all
        self._joins = False  # from the next safe point on it is that of all
        self._number = 0  # of the next step that is computed
        self._scale = 1.0  # of the learning rate, in the view whose steps are done
        self._loss_scale = seat.loss_scale  # of the state
        self._early: list[Received] = []
        self._reports: Final = ProgramReports()
        self._saves: Final = Saves(seat.incarnation)
        self._teaching: Final = Teaching(seat, batches)
        self._loaded = seat.step > 0  # the state is a file's, since no safe point

    @property
    def me(self) -> Member:
        """The part as a member of its view."""
        assert self._member is not None
        return self._member

    @property
    def runs(self) -> bool:
        """Returns whether the program may go on."""
        return self.stage in (Stage.AT_WORK, Stage.COMPLETING)

    @property
    def is_complete(self) -> bool:
        """Returns whether the steps of the view are done."""
        return self.stage is Stage.DONE

    # Events.

    def receive(self, event: Any, now: float) -> Iterable[Any]:
        """Handles a message, and results of the body."""
        match event:
            case Received():
                return self._received(event, now)
            case Applied():
                assert self._updates, self.running.action
                self._updates = False
            case DotsRead(number=number, values=values):
                self.running.take(number, self._exchanges.products(values))
            case Persisted() | NotPersisted():
                return self._saves.written(event)
        return ()

    def _received(self, event: Received, now: float) -> Iterable[Any]:
        match event.message:
            case rm.Pause(view=view):
                return self._pause(view)
            case rm.View() as view:
                return self._publish(view, now)
            case Save() as save:
                return [*self._saves.ask(save, self.step), *self._save_if_there()]
            case rm.Reduced(view=number) as reduced:
                is_in_time, refused = self._look_at_view(number, event)
                return self._exchanges.reduced(event.sender, reduced) if is_in_time else refused
        if event.incarnation != self._peers.get(event.sender):
            return ()  # of a process that was replaced, or whose address comes later: it is asked for again
        message: Any = event.message
        is_in_time, refused = self._look_at_view(message.view, event)
        return self._exchanges.receive_message(event, now) if is_in_time else refused

    def deliver(self, event: Received) -> Iterable[Any]:
        """Gives the step's instructions a message of another part, if it is of this view."""
        message: Any = event.message
        is_in_time, refused = self._look_at_view(message.step // STEPS_OF_A_VIEW, event)
        return super().deliver(event) if is_in_time else refused

    def peers_changed(self, event: PeersChanged, now: float) -> Iterable[Any]:
        """Notes a newer directory, in which the members of the view may be."""
        self._revision, self._peers = event.revision, dict(event.peers)
        return self._begin_if_reachable(now)

    # Messages of views.

    def _look_at_view(self, view: int, event: Received) -> tuple[bool, list[Refuse]]:
        """Returns whether a message is of the view under way, and a refusal; keeps one of a later view."""
        if self._is_of_view(view):
            return True, []
        if view < self._wanted:
            return False, []
        if len(self._early) >= MOST_EARLY:
            return False, [Refuse(event.sender, "more than the messages of one step of a later view")]
        self._early.append(event)
        return False, []

    def _is_of_view(self, view: int) -> bool:
        known = self._view is not None and view == self._view.number and self._pausing is None
        return known and self.stage not in (Stage.REACHING, Stage.COMPLETING)

    def _take_early(self, now: float) -> Iterator[Any]:
        early, self._early = self._early, []
        for event in early:
            is_of_replica = isinstance(event.message, m.Tensor | m.Credit)
            yield from self.deliver(event) if is_of_replica else self._received(event, now)

    # Views.

    def _pause(self, view: int) -> list[Send]:
        if view < self._wanted or (self._view is not None and view <= self._view.number):
            return []
        self._pausing, self._wanted = view, view
        if self.stage is Stage.PAUSED:
            return [self._paused(view)]
        return [] if self._updates else self._freeze()  # an update that is under way ends before

    def _freeze(self) -> list[Send]:
        """Stops at once: nothing of the view under way is accepted or sent from here on."""
        assert self._pausing is not None
        if self.stage in (Stage.AT_WORK, Stage.DONE):
            self._completes = self._is_needed and self._exchanges.has_completed
        self.stage = Stage.PAUSED
        self.computing = None
        self._exchanges.close()
        self._reports.drop()
        return [self._paused(self._pausing)]

    def _set_back(self) -> list[CopyVector]:
        """Sets the parameters back to those before the step, where they were kept."""
        if not self._kept:
            return []
        self._kept = self._changed = False
        return [CopyVector(Span(_START, 0, self._seat.size), "parameters")]

    @property
    def _is_needed(self) -> bool:
        """Returns whether the action under way belongs to the end of a step, which needs nobody else.

        Before the last exchange of a step no part has its end, so that nobody asks for it.
        """
        action = self.running.action
        if self._kept:
            return isinstance(action, a.Restore)
        if self.running.awaits is not None or isinstance(action, a.Combine):
            return self._exchanges.is_in_step
        return isinstance(action, ExchangeAction | a.Apply)

    def _paused(self, view: int) -> Send:
        within = self._completes and not self._computes
        place = self.points, within, self._loaded, self._loss_scale
        answer = rm.Paused(view, self.step, self._completes, self._alone, *place)
        return Send(COORDINATOR, answer)

    def _publish(self, view: rm.View, now: float) -> Iterator[Any]:
        if self._view is not None and view.number <= self._view.number:
            if view.number == self._view.number:
                yield Send(COORDINATOR, rm.Joined(view.number))
            return
        if self._pausing != view.number or self.stage is not Stage.PAUSED:
            return
        self._view, self._pausing = view, None
        self.stage = Stage.REACHING
        yield Send(COORDINATOR, rm.Joined(view.number))
        self._number = view.number * STEPS_OF_A_VIEW
        yield RestartSteps(self._number)
        yield from self._set_back()
        yield from self._begin_if_reachable(now)

    def _begin_if_reachable(self, now: float) -> Iterable[Any]:
        view = self._view
        if self.stage is not Stage.REACHING or view is None or self._revision < view.directory:
            return ()
        is_behind = self.step is not None and (self.step, self.points) < (view.step, view.points)
        if is_behind and not self._receives(view):
            # Another part of this replica has the state, so this one has all that its update needs.
            assert self._completes, (self.running.action, view)
            self.stage, self._completes = Stage.COMPLETING, False
            return ()
        return self._copy_states(view, now)

    def _receives(self, view: rm.View) -> bool:
        me = self._seat
        return any(copy.target == me.replica and copy.machine == me.machine for copy in view.copies)

    def _copy_states(self, view: rm.View, now: float) -> Iterator[Any]:
        """Sends this part's state to others, or receives it, before the first step."""
        self.running.drop()
        self._member, self._completes = None, False
        self.stage = Stage.COPYING
        if self._receives(view):
            self.step = None
        yield from self._exchanges.begin_view(view, self._peers, now)
        yield from self._take_early(now)

    def advance(self, now: float) -> Iterator[Any]:
        """Begins the steps of the view when all states are copied."""
        view = self._view
        if self.stage is not Stage.COPYING or view is None or not self._exchanges.complete:
            return
        if self.step is None or self._loss_scale is None:
            self._loss_scale = view.loss_scale  # else it is that of the part's own state
        if self.step is None:
            self.step, self.points, self._loaded = view.step, view.points, False
            yield StateReceived(view.step)
        assert (self.step, self.points) == (view.step, view.points), (self.step, self.points, view)
        self.stage = Stage.AT_WORK
        self._scale = view.scale
        self._member = Member(self._seat.replica, self._seat.machine, view, self._batches)
        self._member.loss_scale = self._loss_scale
        self._reports.begin(now)
        self._teaching.begin_view()
        self._changed = self._combined = self._computes = False

    # Actions.

    def comes(self, action: a.Action | None, now: float) -> Iterable[Any]:
        """Stops before an action where another view was announced, and prepares an update."""
        if action is None:
            return self._finish(now)
        self._alone |= isinstance(action, a.Compute) and action.alone
        self._joins |= isinstance(action, a.AllReduce) and action.vector == "parameters"
        is_own = not self._kept and isinstance(action, a.Apply | a.Combine | a.SafePoint)
        if self._pausing is not None and not is_own:
            self.running.action = None
            return self._freeze()
        if not is_own and (self.stage is Stage.COMPLETING or self._combined):
            raise RuntimeError(
                f"the driver's program yields {action} between an update and its safe point; after the "
                "last exchange of a step, only Apply and Combine may come before SafePoint"
            )
        if isinstance(action, a.Restore):
            return self._exchanges.meet_replica(now)
        if self._kept:
            self._check_kept(action)
        elif self.stage is not Stage.COMPLETING and self._changes(action) is not None:
            return self._exchanges.wait_for_replica(now)
        return ()

    def _check_kept(self, action: a.Action) -> None:
        """Refuses what cannot be undone between `Keep` and `Restore`. Raises RuntimeError."""
        if isinstance(action, a.SafePoint | a.Keep) or self._changes(action) not in (None, "parameters"):
            raise RuntimeError(
                f"the driver's program yields {action} between Keep and Restore, where only the parameters "
                "and scratch vectors may change; yield Restore first"
            )

    def _changes(self, action: a.Action) -> str | None:
        """Returns the vector of the part's state that an action changes; None: it changes none."""
        if isinstance(action, a.Apply):
            return action.to
        kept = isinstance(action, a.Combine) and action.into in self._seat.state
        return action.into if kept and isinstance(action, a.Combine) else None

    @override
    def may_begin(self, action: a.Action) -> bool:
        """Returns whether no peer may ask again for what an action overwrites."""
        exchanges = self._exchanges
        match action:
            case a.Compute(teaches=teaches):
                return exchanges.released(PREDICTIONS if teaches else "gradient")
            case a.Apply(to=vector) | a.Combine(into=vector):
                if self.stage is Stage.COMPLETING:
                    return True
                is_scratch = self._changes(action) is None
                return exchanges.released(vector) and (is_scratch or exchanges.complete)
            case a.Restore():
                return self.stage is Stage.COMPLETING or exchanges.complete
        return True

    def begin(self, action: a.Action, now: float) -> Iterable[Any]:
        """Begins an action, and returns its effects."""
        match action:
            case a.Compute():
                computes = self._compute(action)
                return [*self._save_if_there(), computes]
            case a.Apply():
                self._changed = self._updates = True
                return [self._update(action)]
            case a.Combine(into=into, terms=terms, unlearned=others):
                changes = self._changes(action) is not None
                self._combined |= changes and not self._kept
                self._changed |= changes
                self._teaching.combine(action)
                span = Span(into, 0, self._seat.length(into))
                unlearned = None if others is None else tuple(others.items())
                return [CombineVectors(span, tuple(terms.items()), unlearned)]
            case a.Keep():
                self._computes = True  # a replica may have no part in what is computed
                saves = self._save_if_there()
                self._kept = True
                return [*saves, CopyVector(Span("parameters", 0, self._seat.size), _START)]
            case a.Restore():
                self._kept = True  # also where the view has set them back already
                return self._set_back()
        return self._safe_point(now)

    def _update(self, action: a.Apply) -> ApplyUpdate:
        spans = self._exchanges.owned if action.own else (Span(action.to, 0, self._seat.size),)
        updates = self.me.step if action.updates is None else action.updates
        return ApplyUpdate(action.optimizer, spans, updates, self._scale, action.gradient)

    @override
    def is_done(self, action: a.Action) -> bool:
        """Returns whether an action that has begun is complete."""
        return self.computing is None and not self._updates

    def _compute(self, action: a.Compute) -> RunStep:
        member, step = self.me, action.step
        if step != member.step or member.reached[0] == step:
            raise RuntimeError(
                f"the driver's program computes step {step}, and {member.step} is under way; compute each "
                "step of me.steps() once, in its turn"
            )
        self._exchanges.begin_step()
        self.computing, self._computes = self._number, True
        self._number += 1
        place = *self._teaching.examples(action, member), member.replicas
        of = action.of if isinstance(action.of, a.Portion) else None
        taught = action.teaches, action.distil, action.loss_scale
        return RunStep(self.computing, step, *place, action.alone, of, *taught, entry=action.entry)

    def done(self, done: StepDone, now: float) -> Iterable[Any]:
        """Counts the sums of a step, from the next safe point on; a teacher's are not the replica's."""
        action = self.running.action
        assert isinstance(action, a.Compute), action
        if not action.teaches:
            self._reports.add(done)
        return ()

    def _safe_point(self, now: float) -> Iterator[Any]:
        step, _ = self.me.reached
        yield from self._exchanges.settle(step - 1)
        self._changed = self._combined = False
        self._exchanges.begin_step()
        self._alone, self._joins = self._alone and not self._joins, False
        self._computes = self._loaded = False
        if self.stage is Stage.COMPLETING:
            self._reach(step)
            if self._pausing is not None:
                yield from self._freeze()
                self.running.drop()
            else:
                assert self._view is not None
                yield from self._copy_states(self._view, now)
            return
        if self._reach(step) and self._reports.settle(step, now):
            yield from self._reports.send(step, now)
        if self._pausing is not None:
            yield from self._freeze()

    def _reach(self, step: int) -> bool:
        """Notes a safe point after so many steps. Returns whether it is the first one there."""
        is_first = step != self.step
        self.step, self.points = step, 0 if is_first else self.points + 1
        self._loss_scale = self.me.loss_scale
        return is_first

    def _finish(self, now: float) -> Iterator[Any]:
        if self.stage is Stage.COMPLETING:
            raise RuntimeError("the driver's program ends without a safe point after its last update")
        assert self.step is not None
        self.stage = Stage.DONE
        yield from self._save_if_there()
        yield from self._reports.send(self.step, now)
        if self._pausing is not None:
            yield from self._freeze()

    def _save_if_there(self) -> list[Any]:
        """Begins the file that the coordinator asked for, if the state is the last one of its step."""
        is_last = self._computes or self.stage is Stage.DONE
        if self.step is None or not is_last or self._changed:
            return []
        return self._saves.at(self.step, self._loss_scale)

    def waits(self) -> Iterator[tuple[str, str]]:
        """Yields (host, what) that the part gets no further without."""
        if self.stage is Stage.COPYING:
            yield from ((host, "a copy of the state") for host in self._exchanges.waits_for)
        elif self.stage is Stage.AT_WORK:
            what = f"its share of the exchange in step {self.step}"
            yield from ((host, what) for host in self._exchanges.waits_for)

    @override
    def validate(self) -> None:
        """Checks the invariants. Raises AssertionError."""
        if self.stage in (Stage.AT_WORK, Stage.COMPLETING):
            assert self._member is not None, self.stage
        if self.stage is Stage.AT_WORK:
            waits = self.running.action is not None or self.running.awaits is not None
            assert self.step is not None and waits, (self.stage, self.step)
        assert self.step is not None or self.stage in (Stage.COPYING, Stage.PAUSED, Stage.REACHING)
        assert len(self._early) <= MOST_EARLY
