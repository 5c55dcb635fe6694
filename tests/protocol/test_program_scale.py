"""The cost of a message to the coordinator of programs does not grow with the run: lines are counted."""

from __future__ import annotations

from partita.engine.protocol import Message, Topology, encode
from partita.engine.protocol.coordinator import Coordinator
from partita.engine.protocol.coordinator_effects import (
    CoordinatorEffect,
    CoordinatorEvent,
    Launched,
    Opened,
    RunSettings,
    Timeouts,
)
from partita.engine.protocol.events import Received, Send, Tick
from partita.engine.protocol.joined_mode import JoinedMode
from partita.engine.protocol.messages import (
    DirectoryAck,
    Finished,
    Heartbeat,
    Hello,
    Ready,
    Report,
    WaitReport,
)
from partita.engine.protocol.replica_messages import Joined, Pause, Paused, View
from partita.engine.protocol.views import Outline
from tests.protocol.coordinating import of
from tests.protocol.fleet import everything
from tests.protocol.test_scale import Counter

MACHINES, FEW, MANY = 2, 3, 200


class Run:
    """A coordinator whose replicas have a view."""

    def __init__(self, replicas: int) -> None:
        topology = Topology(replicas, MACHINES, 0)
        self.machine = Coordinator(
            everything,
            Outline(1, 1 << 40, 8, replicas),
            JoinedMode(),
            topology,
            settings=RunSettings(timeouts=Timeouts(checkpoint_every_s=None)),
        )
        self.now = 0.0
        self.parts = [part for replica in range(replicas) for part in topology.parts(replica)]
        self.feed(Opened())
        for name in self.parts:
            self.feed(Launched(name, 0, "k" * 40, "a computer"))
            self.receive(name, Hello("tcp://127.0.0.1:12345", {}))
        effects: list[CoordinatorEffect] = []
        for name in self.parts:
            effects += self.receive(name, Ready())
            self.receive(name, DirectoryAck(1))
        pauses = [send.to for send in of(Send, effects) if isinstance(send.message, Pause)]
        assert pauses == self.parts, "each part is asked once"
        self.answers = [(name, Paused(1, 0)) for name in self.parts]
        self.count, self.lines = Counter(), {}
        self.lines["paused"] = self.count(lambda: self.receive(*self.answers[0]))
        for answer in self.answers[1:]:
            effects = self.receive(*answer)
        self.views = [send.message for send in of(Send, effects) if isinstance(send.message, View)]
        assert len(self.views) == len(self.parts)
        for name in self.parts:
            self.receive(name, Joined(1))
            self.receive(name, Report(1, 32, 1.0, 1, 0.0, 0))
        self.now += 0.6
        for name in self.parts:
            self.receive(name, Heartbeat(0, self.now))
        self.feed(Tick())
        self.now += 0.01

    def feed(self, event: CoordinatorEvent) -> list[CoordinatorEffect]:
        return self.machine.receive(event, self.now)

    def receive(self, name: str, message: Message) -> list[CoordinatorEffect]:
        return self.feed(Received(name, 0, message))


def costs(run: Run) -> dict[str, int]:
    """The lines executed for each kind of event."""
    found = dict(run.lines)
    for kind, message in {
        "heartbeat": Heartbeat(0, run.now),
        "joined": Joined(1),
        "report": Report(2, 32, 1.0, 1, 0.0, 0),
        "wait": WaitReport("part 0.0", "its share", 3.0),
        "progress": Report(3, 32, 1.0, 1, 0.0, 0),
        "finished": Finished(run.machine.mode._last_step, 1),
    }.items():
        found[kind] = run.count(lambda message=message: run.receive("part 1.0", message))  # type: ignore[misc]
    return found | {"tick": run.count(lambda: run.feed(Tick()))}


def test_no_message_costs_more_in_a_larger_run() -> None:
    few, many = Run(FEW), Run(MANY)
    assert costs(many) == costs(few)


def test_a_view_takes_a_few_bytes_for_each_member() -> None:
    few, many = Run(FEW), Run(MANY)
    grown = len(encode(many.views[0])) - len(encode(few.views[0]))
    assert grown <= 3 * (MANY - FEW) + 16
