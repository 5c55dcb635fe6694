"""The machine of a part that runs a driver's program: actions of the generator in, effects for the body out.

It does what every part does whatever the driver: pauses for a view and goes on under it, exchanges vectors
with other replicas, reports steps and long waits, and saves its state at the step that the coordinator names.
It must not know numbers, instructions, optimizers or time beyond `now`.

A view is announced by `Pause`. Each part then drops what it does and answers with the steps that its state
holds; the coordinator publishes the view when all have answered. A replica that is behind gets the state of
one that is not, and the generators start anew. No part of a replica changes its parameters before its other
parts have what they need to do so, too (`Reduced`): they can all reach the step that one of them has reached,
with nobody's help.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, Final, TypeAlias

from typing_extensions import override

from partita.engine.protocol import actions as a
from partita.engine.protocol import messages as m
from partita.engine.protocol import replica_messages as rm
from partita.engine.protocol.events import NotPersisted, Persisted, Received, Refuse, Send, Span, Tick
from partita.engine.protocol.host import PeersChanged, RoleMachine
from partita.engine.protocol.names import COORDINATOR
from partita.engine.protocol.program_effects import (
    STEPS_OF_A_VIEW,
    Applied,
    ApplyUpdate,
    Deliver,
    MeasureNorms,
    PartSeat,
    RestartSteps,
    RunStep,
    StateReceived,
    StepDone,
    StuckOn,
)
from partita.engine.protocol.program_exchanges import ExchangeAction, Exchanges
from partita.engine.protocol.program_reports import ProgramReports
from partita.engine.protocol.program_saves import Saves
from partita.engine.protocol.stall_detector import StallDetector
from partita.engine.protocol.views import JoinedBatches, Member

Replica: TypeAlias = Callable[[Member], a.Program]
"""The type of a driver's method `replica`."""

RETRY_S: Final = 1.0
MOST_EARLY: Final = 1024
"""Messages of a view that is not here yet, or of an exchange that has not begun, that are kept."""


class Stage(Enum):
    """The stages of a part. Values: what it does."""

    PAUSED = "waits for a view"
    REACHING = "waits until it can reach all members of its view"
    COMPLETING = "ends the step that the view goes on from"
    COPYING = "receives or sends a state"
    AT_WORK = "runs its program"
    DONE = "has done all steps of its view"


class ReplicaProgram(RoleMachine):
    """One part of one replica.

    Attributes:
        stage: of the part.
        step: steps that its state holds; None while another one's state replaces it.
    """

    def __init__(
        self,
        replica: Replica,
        seat: PartSeat,
        batches: JoinedBatches,
        *,
        retry_s: float = RETRY_S,
    ) -> None:
        """A part that waits for its first view.

        Args:
            replica: the driver's program.
            seat: the part.
            batches: of the run.
            retry_s: seconds without an answer after which a message is sent again.
        """
        self.stage = Stage.PAUSED
        self.version = seat.step
        self.step: int | None = seat.step
        self._replica: Final = replica
        self._seat: Final = seat
        self._batches: Final = batches
        self._retry_s: Final = retry_s
        self._revision = 0
        self._peers: dict[str, int] = {}
        self._wanted = 0  # messages of older views have no effect
        self._pausing: int | None = None  # the view that was announced, until it is here
        self._view: rm.View | None = None
        self._member: Member | None = None
        self._program: a.Program | None = None
        self._waiting: a.Action | None = None  # the action that is under way
        self._held = False  # it has not begun: a peer may still ask for what it would overwrite
        self._completes = False  # after a pause: it can end the step under way without other replicas
        self._in_step = False  # all parts of the replica have what the next update needs
        self._changed = False  # since the last safe point: the state is of no step
        self._number = 0  # of the next step that is computed
        self._exchanges: Final = Exchanges(seat, retry_s=retry_s)
        self._early: list[Received] = []
        self._reports: Final = ProgramReports()
        self._saves: Final = Saves(seat.incarnation)
        self._stuck = StuckOn(-1, ())
        self._stalls: Final = StallDetector()
        self._sent_at = float("-inf")
        self._out: list[Any] = []
        self._now = 0.0

    @override
    def receive(self, event: Any, now: float) -> list[Any]:
        """See `RoleMachine`. Results of the body are `StepDone`, `Applied`, `StuckOn`, `Persisted` ..."""
        self._out, self._now = [], now
        match event:
            case Received():
                self._received(event)
            case StepDone():
                self._step_done(event)
            case Applied():
                assert self._updates, self._waiting
                self._go_on()
            case Tick():
                self._tick()
            case PeersChanged(revision=revision, peers=peers):
                self._revision, self._peers = revision, dict(peers)
                self._begin_if_reachable()
            case StuckOn():
                self._stuck = event
            case Persisted() | NotPersisted():
                self._out += self._saves.written(event)
            case _:
                raise AssertionError(event)
        return self._out

    def _received(self, event: Received) -> None:
        match event.message:
            case m.Tensor(step=number) | m.Credit(step=number):
                self._of_replica(event, number)
            case rm.Pause(view=view):
                self._pause(view)
            case rm.View() as view:
                self._publish(view)
            case m.Save() as save:
                self._out += self._saves.ask(save, self.step)
                self._save_if_there()
            case rm.Reduced(view=view) as reduced:
                if self._is_of_view(view, event):
                    self._out += self._exchanges.reduced(event.sender, reduced)
                    self._look_at_exchange()
            case m.Heartbeat():
                return
            case rm.PartialChunk() | rm.FinalChunk() | rm.ChunkRequest() | rm.ExchangeAck():
                self._of_exchange(event)
            case message:
                kind = type(message).__name__
                self._out.append(Refuse(event.sender, f"a {kind}, which is not for a part of a program"))

    # Messages of views.

    def _is_of_view(self, view: int, event: Received) -> bool:
        """Returns whether a message is of the view under way; keeps one that is of a later view."""
        known = self._view is not None and view == self._view.number and self._pausing is None
        if known and self.stage not in (Stage.REACHING, Stage.COMPLETING):
            return True
        if view >= self._wanted:
            self._keep(event)
        return False

    def _keep(self, event: Received) -> None:
        if len(self._early) < MOST_EARLY:
            self._early.append(event)
        else:
            self._out.append(Refuse(event.sender, "more than the messages of one step of a later view"))

    def _take_early(self) -> None:
        early, self._early = self._early, []
        for event in early:
            self._received(event)

    def _of_replica(self, event: Received, number: int) -> None:
        if self._is_of_view(number // STEPS_OF_A_VIEW, event):
            self._out.append(Deliver(event))

    def _of_exchange(self, event: Received) -> None:
        message: Any = event.message
        if event.incarnation != self._peers.get(event.sender):
            return  # of a process that was replaced, or whose address comes later: it is asked for again
        if not self._is_of_view(message.view, event):
            return
        if not self._exchanges.has_begun(message.exchange):
            self._keep(event)
            return
        self._out += self._exchanges.receive_message(event, self._now)
        self._look_at_exchange()

    # Views.

    def _pause(self, view: int) -> None:
        if view < self._wanted or (self._view is not None and view <= self._view.number):
            return
        self._pausing, self._wanted = view, view
        if self.stage is Stage.PAUSED:
            self._send_paused(view)
        elif not self._updates:  # an update that is under way ends before
            self._freeze()

    @property
    def _updates(self) -> bool:
        """Whether the parameters are changing."""
        return isinstance(self._waiting, a.Apply) and not self._held

    def _freeze(self) -> None:
        """Stops at once: nothing of the view under way is accepted or sent from here on."""
        assert self._pausing is not None
        if self.stage in (Stage.AT_WORK, Stage.DONE):
            needed = isinstance(self._waiting, ExchangeAction | a.Apply)
            self._completes = needed and self._exchanges.has_completed
        self.stage = Stage.PAUSED
        self._reports.drop()
        self._send_paused(self._pausing)

    def _send_paused(self, view: int) -> None:
        self._out.append(Send(COORDINATOR, rm.Paused(view, self.step, self._completes)))

    def _publish(self, view: rm.View) -> None:
        if self._view is not None and view.number <= self._view.number:
            if view.number == self._view.number:
                self._out.append(Send(COORDINATOR, rm.Joined(view.number)))
            return
        if self._pausing != view.number or self.stage is not Stage.PAUSED:
            return
        self._view, self._pausing = view, None
        self.stage = Stage.REACHING
        self._out.append(Send(COORDINATOR, rm.Joined(view.number)))
        self._number = view.number * STEPS_OF_A_VIEW
        self._out.append(RestartSteps(self._number))
        self._begin_if_reachable()

    def _begin_if_reachable(self) -> None:
        view = self._view
        if self.stage is not Stage.REACHING or view is None or self._revision < view.directory:
            return
        held, self._waiting = self._waiting, None
        if self.step is not None and self.step < view.step and not self._receives(view):
            # Another part of this replica has the state, so this one has all that its update needs.
            assert self._completes, (held, view)
            self.stage, self._completes = Stage.COMPLETING, False
            if isinstance(held, ExchangeAction):
                self._out += self._exchanges.end(held)
            elif self._held and held is not None:
                self._held = False
                self._act(held)
            self._advance()
            return
        self._drop_program()
        self._copy_states(view)

    def _receives(self, view: rm.View) -> bool:
        me = self._seat
        return any(copy.target == me.replica and copy.machine == me.machine for copy in view.copies)

    def _drop_program(self) -> None:
        if self._program is not None:
            self._program.close()
        self._program = self._member = None
        self._held = self._completes = False

    def _copy_states(self, view: rm.View) -> None:
        """Sends this part's state to others, or receives it, before the first step."""
        self.stage = Stage.COPYING
        if self._receives(view):
            self.step = None
        self._out += self._exchanges.begin_view(view, self._peers, self._now)
        self._take_early()
        self._look_at_exchange()

    def _begin(self, view: rm.View) -> None:
        if self.step is None:
            self.step = view.step
            self._out.append(StateReceived(view.step))
        assert self.step == view.step, (self.step, view)
        self.stage = Stage.AT_WORK
        self._member = Member(self._seat.replica, self._seat.machine, view, self._batches)
        self._program = self._replica(self._member)
        self._reports.begin(self._now)
        self._changed = False
        self._save_if_there()
        self._advance()

    # Actions.

    def _go_on(self) -> None:
        """Ends the action under way, and runs the program up to the next one that takes time."""
        self._waiting = None
        self._advance()

    def _advance(self) -> None:
        while self._waiting is None and self.stage in (Stage.AT_WORK, Stage.COMPLETING):
            assert self._program is not None
            action = next(self._program, None)
            if action is None:
                self._finish()
            elif self._pausing is not None and not isinstance(action, a.Apply | a.SafePoint):
                self._freeze()
            elif self._is_free(action):
                self._act(action)
            else:
                self._waiting, self._held = action, True

    def _is_free(self, action: a.Action) -> bool:
        """Returns whether no peer may ask again for what an action overwrites."""
        if self.stage is Stage.COMPLETING:
            return True  # nothing of the last view is answered any more
        match action:
            case a.Compute():
                return self._exchanges.released("gradient")
            case a.Apply():
                if not self._in_step:
                    self._in_step = True
                    self._out += self._exchanges.wait_for_replica(self._now)
                return self._exchanges.complete and self._exchanges.released("parameters")
            case a.Norms():
                return self._exchanges.released("norms")
            case a.AllReduce() | a.ReduceScatter() | a.AllGather():
                return self._exchanges.released(self._exchanges.vector_of(action))
        return True

    def _act(self, action: a.Action) -> None:
        if self.stage is Stage.COMPLETING and not isinstance(action, a.Apply | a.SafePoint):
            raise RuntimeError(
                f"the driver's program yields {action} between an update and its safe point; after the last "
                "exchange of a step, only Apply may come before SafePoint"
            )
        match action:
            case a.Compute():
                self._compute(action)
                self._waiting, self._in_step = action, False
            case a.AllReduce() | a.ReduceScatter() | a.AllGather():
                self._waiting, self._in_step = action, True
                self._out += self._exchanges.begin(action, self._now)
                self._take_early()
                self._look_at_exchange()
            case a.Norms():
                self._out.append(MeasureNorms(self._exchanges.owned))
            case a.Apply(optimizer=optimizer, own=own):
                self._waiting = action
                assert self._member is not None
                self._changed = True
                spans = self._exchanges.owned if own else (Span("parameters", 0, self._seat.size),)
                self._out.append(ApplyUpdate(optimizer, spans, self._member.step))
            case a.SafePoint():
                self._safe_point()
            case _:
                raise RuntimeError(f"the driver's program yields {action}, and its replicas have no shards")

    def _compute(self, action: a.Compute) -> None:
        member, step = self._member, action.step
        assert member is not None
        if step != member.step or member.reached[0] == step:
            raise RuntimeError(
                f"the driver's program computes step {step}, and {member.step} is under way; compute each "
                "step of me.steps() once, in its turn"
            )
        place = member.position, member.rank, member.replicas
        self._out.append(RunStep(self._number, step, *place, action.alone))
        self._number += 1

    def _step_done(self, done: StepDone) -> None:
        current = isinstance(self._waiting, a.Compute) and done.number == self._number - 1
        if not current or self.stage is not Stage.AT_WORK:
            return  # of a view that has ended
        self._reports.add(done)
        self._go_on()

    def _look_at_exchange(self) -> None:
        """Goes on when the exchange under way is complete, or an action need not be held any more."""
        waiting = self._waiting
        if self.stage is Stage.AT_WORK and self._held:
            if waiting is not None and self._is_free(waiting):
                self._waiting, self._held = None, False
                self._act(waiting)
                self._advance()
        elif not self._exchanges.complete:
            return
        elif self.stage is Stage.COPYING:
            assert self._view is not None
            self._begin(self._view)
        elif self.stage is Stage.AT_WORK and isinstance(waiting, ExchangeAction):
            self._out += self._exchanges.end(waiting)
            self._go_on()

    def _safe_point(self) -> None:
        assert self._member is not None
        step, _ = self._member.reached
        self._changed = False
        if self.stage is Stage.COMPLETING:
            view = self._view
            assert view is not None
            self.step = step
            self._drop_program()
            if self._pausing is not None:
                self._freeze()
            else:
                self._copy_states(view)
            return
        if step != self.step:
            self.step = step
            if self._reports.settle(step, self._now):
                self._out += self._reports.send(step, self._now)
        self._save_if_there()
        if self._pausing is not None:
            self._freeze()

    def _finish(self) -> None:
        if self.stage is Stage.COMPLETING:
            raise RuntimeError("the driver's program ends without a safe point after its last update")
        assert self.step is not None
        self.stage = Stage.DONE
        self._out += self._reports.send(self.step, self._now)
        self._send_finished()
        if self._pausing is not None:
            self._freeze()

    def _send_finished(self) -> None:
        assert self.step is not None
        self._sent_at = self._now
        self._out.append(Send(COORDINATOR, m.Finished(self.step, self._revision)))

    # Checkpoints, and time.

    def _save_if_there(self) -> None:
        """Begins the file that the coordinator asked for, if the state is that of its step."""
        if self.step is not None and not self._changed:
            self._out += self._saves.at(self.step)

    def _tick(self) -> None:
        if self.stage in (Stage.COPYING, Stage.AT_WORK, Stage.DONE):
            self._out += self._exchanges.tick(self._now)
            self._look_at_exchange()
        if self.stage is Stage.DONE and self._now - self._sent_at >= self._retry_s:
            self._send_finished()
        at = (self.stage, self._number, self.step)
        waits = tuple(self._waits())
        self._out += [Send(COORDINATOR, report) for report in self._stalls.look(at, waits, self._now)]

    def _waits(self) -> Iterable[tuple[str, str]]:
        """Yields (host, what) that the part gets no further without."""
        if self.stage is Stage.COPYING:
            yield from ((host, "a copy of the state") for host in self._exchanges.waits_for)
        elif self.stage is Stage.AT_WORK and isinstance(self._waiting, a.Compute) and not self._held:
            if self._stuck.number == self._number - 1:
                yield from self._stuck.waits
        elif self.stage is Stage.AT_WORK:
            what = f"its share of the exchange in step {self.step}"
            yield from ((host, what) for host in self._exchanges.waits_for)

    @override
    def validate(self) -> None:
        """Checks the invariants. Raises AssertionError."""
        if self.stage in (Stage.AT_WORK, Stage.COMPLETING):
            assert self._program is not None and self._member is not None, self.stage
        if self.stage is Stage.AT_WORK:
            assert self.step is not None and self._waiting is not None, (self.stage, self.step)
        assert self.step is not None or self.stage in (Stage.COPYING, Stage.PAUSED, Stage.REACHING)
        assert len(self._early) <= MOST_EARLY
        self._exchanges.validate()
