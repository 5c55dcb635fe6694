"""A Downpour coordinator under test, and the events of its hosts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from partita.engine.drivers import Downpour
from partita.engine.protocol import Coordinator, LeasedMode, Message, Topology
from partita.engine.protocol.checkpoint_messages import Saved
from partita.engine.protocol.coordinator_effects import (
    Commit,
    Committed,
    CoordinatorEffect,
    CoordinatorEvent,
    Launched,
    Opened,
    Restart,
    RunSettings,
)
from partita.engine.protocol.events import Received, Send, Tick
from partita.engine.protocol.messages import (
    Begin,
    DirectoryAck,
    Finished,
    Heartbeat,
    Hello,
    Ready,
    Report,
    ResumeStep,
)
from partita.engine.protocol.views import Outline

T = TypeVar("T")
SHARDS = ("shard 0", "shard 1")
PARTS = ("part 0.0", "part 0.1", "part 1.0", "part 1.1")
HOSTS = (*SHARDS, *PARTS)
STEPS = 10


class Run:
    """A coordinator of two replicas of two machines and two shards, and the events of its hosts."""

    def __init__(self, *, topology: Topology | None = None, **options: object) -> None:
        units = options.pop("units", 2 * STEPS)
        driver = {"least_ahead": STEPS}  # so each replica is leased all of its steps
        driver |= {key: options.pop(key) for key in ("done", "least_ahead", "most_ahead") if key in options}
        settings = RunSettings(**({"run": "r", "versions": {"python": "3.11"}} | options))  # type: ignore[arg-type]
        topology = topology or Topology(2, 2, 2)
        outline = Outline(1, units, 1, topology.replicas)  # type: ignore[arg-type]
        mode = LeasedMode(**driver)  # type: ignore[arg-type]
        self.machine = Coordinator(Downpour().coordinator, outline, mode, topology, settings=settings)
        self.now = 100.0
        self.commits = True  # every manifest is written at once
        self.incarnations = dict.fromkeys(HOSTS, 0)

    def feed(self, event: CoordinatorEvent) -> list[CoordinatorEffect]:
        effects = self.machine.receive(event, self.now)
        for commit in of(Commit, effects) if self.commits else ():
            effects = [*effects, *self.machine.receive(Committed(commit.checkpoint), self.now)]
        self.machine.validate()
        for restart in of(Restart, effects):
            self.incarnations.update(restart.hosts)
        return effects

    def receive(
        self, name: str, message: Message, *, incarnation: int | None = None
    ) -> list[CoordinatorEffect]:
        known = self.incarnations[name] if incarnation is None else incarnation
        return self.feed(Received(name, known, message))

    def hello(self, name: str) -> list[CoordinatorEffect]:
        self.feed(Launched(name, self.incarnations[name], f"key {name}"))
        return self.receive(name, Hello(f"tcp://{name}", {"python": "3.11"}))

    def wait(self, seconds: float, *, hearing: Sequence[str] = HOSTS) -> list[CoordinatorEffect]:
        """Ticks for so long; these hosts send heartbeats all the time, and have received their messages."""
        effects, until = [], self.now + seconds
        while self.now < until - 1e-9:
            self.now += 0.25
            for name in hearing:
                self.receive(name, Heartbeat(0))
                self.receive(name, DirectoryAck(1000))
            effects += self.feed(Tick())
        return effects

    def start(self) -> Run:
        """Runs up to the first step."""
        self.feed(Opened())
        for name in HOSTS:
            self.hello(name)
        for name in HOSTS:
            self.ready(name)
        return self

    def ready(self, name: str, *, continues: int | None = 0) -> list[CoordinatorEffect]:
        """Gives a host its task, and a part its first parameters."""
        effects = self.receive(name, Ready())
        if name in PARTS:
            effects += self.receive(name, ResumeStep(continues))
        return effects

    def restarted(self, *names: str, continues: int | None = 0) -> list[CoordinatorEffect]:
        """Brings restarted hosts back to work."""
        effects = [effect for name in names for effect in self.hello(name)]
        return effects + [effect for name in names for effect in self.ready(name, continues=continues)]

    def report(self, name: str, step: int, *, held: int | None = None) -> list[CoordinatorEffect]:
        """A part reports its steps, all of which the shards have acknowledged if not given otherwise."""
        return self.receive(name, Report(step, 32, 1.5, 20, 3, 2, step if held is None else held))

    def finish(self, *names: str, directory: int = 1000, step: int = STEPS) -> list[CoordinatorEffect]:
        return [e for name in names for e in self.receive(name, Finished(step, directory))]

    def saved(self, shard: str, checkpoint: int, *, lost: int = 0) -> list[CoordinatorEffect]:
        incarnation = self.incarnations[shard]
        return self.receive(shard, Saved(checkpoint, incarnation, 7, f"{shard}.{incarnation}", "00", lost))


def of(kind: type[T], effects: Sequence[object]) -> list[T]:
    return [effect for effect in effects if isinstance(effect, kind)]


def messages(kind: type[T], effects: Sequence[object]) -> dict[str, T]:
    return {send.to: send.message for send in of(Send, effects) if isinstance(send.message, kind)}


def begins(effects: Sequence[object]) -> dict[str, tuple[int, int]]:
    """The first step, and the one at which its leases end, of each part that is told to begin."""
    return {name: (begin.step, begin.stop) for name, begin in messages(Begin, effects).items()}
