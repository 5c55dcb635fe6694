"""A simulated part: the real Sandblaster client over a few floats.

The parts of a replica begin a turn together and get its gradient together: that stands for the states and
errors which they would send to one another.
"""

from __future__ import annotations

import math

from partita.engine.protocol.downpour_client import Install, Stage, Started
from partita.engine.protocol.events import Received, Refuse, Replaced, Send, Span, Tick
from partita.engine.protocol.messages import (
    Assignment,
    Contribution,
    ContributionAck,
    Failed,
    Heartbeat,
    Message,
    Point,
)
from partita.engine.protocol.names import COORDINATOR, part_indices
from partita.engine.protocol.sandblaster_client import (
    AssignmentDone,
    RunAssignment,
    SandblasterClient,
    SandblasterEffect,
    SandblasterEvent,
    SwapBuffers,
)
from partita.engine.runtime.simulation.hosts import RETRY_S, Host, Numbers, Run
from partita.engine.runtime.simulation.judgement import Life, Violation, demand
from partita.engine.runtime.simulation.sandblaster.function import Vector
from partita.engine.runtime.simulation.sandblaster.setting import Setting

MEANINGLESS = 123.456
"""What a part finds in a turn that another part of its replica plays on something else."""


class PartHost(Host):
    """Interprets the effects of a `SandblasterClient`, and plays turns."""

    client: SandblasterClient

    def __init__(self, setting: Setting, run: Run, life: Life, checkpoint: int | None) -> None:
        super().__init__(setting.world, run, life, checkpoint)
        self.setting = setting
        self.ledger = setting.ledger_of(run)

    def assign(self) -> None:
        """Makes the client, and vectors of zeros."""
        indices = part_indices(self.name)
        assert indices is not None
        self.replica, self.machine = indices
        scenario = self.setting.scenario
        self.client = self.setting.machines.client(
            shards=self.setting.layout.of_machine[self.machine],
            alone=len(scenario.machines) == 1,
            retry_s=RETRY_S,
        )
        n = scenario.machines[self.machine]
        names = ("parameters", "staged", "accumulated", "in_flight")
        self.vectors: dict[str, list[float]] = {name: [0.0] * n for name in names}
        self.started = False
        self.playing: RunAssignment | None = None
        self.found: tuple[Vector, float, int] = ((), 0.0, 0)

    # What it hears.

    def tick(self) -> None:
        """Time passes: says that it lives."""
        self.send(COORDINATOR, Heartbeat(self.incarnation, clock=self.clock))
        self._do(Tick())
        self.say_waits(None, self.client.waits_for)

    def hear(self, sender: str, message: Message, received: Received) -> None:
        """A message for the client."""
        if isinstance(message, (Assignment, Point, ContributionAck)):
            self._do(received)

    def learn(self, replaced: Replaced) -> None:
        """A shard has a new process."""
        if self.assigned:
            self._do(replaced)

    def learned(self) -> None:
        """Asks for the first point as soon as the shards can be reached."""
        if self.assigned and not self.started and self.revision > 0:
            self.started = True
            self._do(Started())

    def on_prepared(self, _: object) -> None:
        """Everything is compiled."""
        super().on_prepared(_)
        self.learned()

    # Turns.

    def _play(self, assignment: RunAssignment) -> None:
        demand(self.playing is None, "I6", self.life, "begins", assignment, "inside", self.playing)
        self.playing = assignment
        if assignment.discarded:
            self.world.note(self, "plays for the others", assignment)
        else:
            parameters = tuple(self.vectors["parameters"])
            self.ledger.plays(self.life, assignment.evaluation, self.machine, parameters)
        self.setting.meet(self, assignment)

    def on_computed(self, _: object) -> None:
        """The turn is over: its gradient has accumulated, from nothing."""
        if self.setting.raises(self.name):
            self.send(COORDINATOR, Failed("the user's function raised", f"traceback of {self.name}"))
            self.exit()
            return
        assignment, self.playing = self.playing, None
        assert assignment is not None
        gradient, loss, right = self.found
        if self.client.is_over(assignment.evaluation):  # it may have been cut short: the numbers are anything
            gradient, loss, right = (MEANINGLESS,) * len(gradient), math.nan, 0
        self.vectors["accumulated"] = list(gradient)
        self._do(AssignmentDone(assignment.sequence, loss, right))

    # Effects.

    def _do(self, event: SandblasterEvent) -> None:
        effects = self.client.receive(event, self.clock)
        for effect in effects:
            self._carry_out(effect)
        if effects or not isinstance(event, Tick):
            self.client.validate()

    def _carry_out(self, effect: SandblasterEffect) -> None:
        match effect:
            case Send(to=to, message=message, payload=span):
                self.send(to, message, self._numbers(message, span))
            case RunAssignment():
                self._play(effect)
            case SwapBuffers():
                n = len(self.vectors["accumulated"])
                self.vectors["in_flight"], self.vectors["accumulated"] = (
                    self.vectors["accumulated"],
                    [0.0] * n,
                )
            case Stage(span=span, payload=payload):
                assert isinstance(payload, Numbers)
                self.vectors["staged"][span.start : span.stop] = payload
            case Install(span=span):
                start, stop = span.start, span.stop
                self.vectors["parameters"][start:stop] = self.vectors["staged"][start:stop]
            case Refuse(sender=sender, reason=reason):
                raise Violation(f"S5: {self.name} refuses what {sender} sent: {reason}")

    def _numbers(self, message: Message, span: Span | None) -> Numbers | None:
        if span is None:
            return None
        assert isinstance(message, Contribution)
        self.ledger.contributes(self.life, message.evaluation, message.unit, self.machine)
        return Numbers(self.vectors[span.vector][span.start : span.stop])
