"""The cost of a message or a change to a coordinator does not grow with the run: lines are counted."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import pytest

from partita.engine.drivers import Downpour
from partita.engine.protocol import Coordinator, LeasedMode, Message, Topology, encode
from partita.engine.protocol.commands import WorkUnit
from partita.engine.protocol.coordinator_effects import (
    CoordinatorEffect,
    CoordinatorEvent,
    Launched,
    Opened,
    Restart,
    RunSettings,
    Timeouts,
)
from partita.engine.protocol.events import Died, Received, Send, Tick
from partita.engine.protocol.messages import (
    AssignmentResult,
    Directory,
    DirectoryAck,
    Finished,
    Heartbeat,
    Hello,
    Ready,
    Report,
    ResumeStep,
    WaitReport,
)
from partita.engine.protocol.views import Outline
from partita.engine.protocol.work_scheduler import WorkScheduler
from tests.protocol.coordinating import of

MACHINES = SHARDS = 8
MANY = 2000


class Counter:
    """Counts the lines that a call executes."""

    def __init__(self) -> None:
        self.lines = 0

    def __call__(self, act: Callable[[], Any]) -> int:
        self.lines, before = 0, sys.gettrace()
        sys.settrace(self._trace)
        try:
            act()
        finally:
            sys.settrace(before)
        return self.lines

    def _trace(self, frame: FrameType, event: str, argument: object) -> Any:
        self.lines += event == "line"
        return self._trace


class Run:
    """A coordinator at work over so many replicas."""

    def __init__(self, replicas: int) -> None:
        topology = Topology(replicas, MACHINES, SHARDS)
        settings = RunSettings(timeouts=Timeouts(checkpoint_every_s=None))
        outline = Outline(1, 1 << 40, 1, replicas)
        self.machine = Coordinator(Downpour().coordinator, outline, LeasedMode(), topology, settings=settings)
        self.now = 0.0
        parts = [part for replica in range(replicas) for part in topology.parts(replica)]
        self.incarnations = dict.fromkeys([*topology.shard_names, *parts], 0)
        self.feed(Opened())
        for name in self.incarnations:
            self.hello(name)
        for name in self.incarnations:
            self.receive(name, Ready())
            self.receive(name, DirectoryAck(1))
        for part in parts:
            self.receive(part, ResumeStep(0))
            self.receive(part, Report(1, 32, 1.0, 1, 0.0, 1))
        self.now += 0.6
        for name in self.incarnations:
            self.receive(name, Heartbeat(0, self.now))
        self.feed(Tick())
        self.now += 0.01

    def feed(self, event: CoordinatorEvent) -> list[CoordinatorEffect]:
        return self.machine.receive(event, self.now)

    def receive(self, name: str, message: Message) -> list[CoordinatorEffect]:
        return self.feed(Received(name, self.incarnations[name], message))

    def hello(self, name: str) -> list[CoordinatorEffect]:
        self.feed(Launched(name, self.incarnations[name], "k" * 40))
        return self.receive(name, Hello("tcp://127.0.0.1:12345", {}))

    def restart(self, part: str) -> list[Send]:
        """Kills a part. Returns the directories that are sent until its replica is back."""
        [restart] = of(Restart, self.feed(Died(part, self.incarnations[part], "killed")))
        self.incarnations.update(restart.hosts)
        effects = [effect for name, _ in restart.hosts for effect in self.hello(name)]
        for name, _ in restart.hosts:
            effects += self.receive(name, Ready())
        return [send for send in of(Send, effects) if isinstance(send.message, Directory)]


def costs(run: Run) -> dict[str, int]:
    """The lines executed for each kind of event, and what is sent for a death."""
    count = Counter()
    found = {
        kind: count(lambda message=message: run.receive("part 1.0", message))  # type: ignore[misc]
        for kind, message in {
            "heartbeat": Heartbeat(0, run.now),
            "report": Report(2, 32, 1.0, 1, 0.0, 1),
            "wait": WaitReport("shard 0", "an answer", 3.0),
            "progress": Report(3, 32, 1.0, 1, 0.0, 1),
            "finished": Finished(3, 1),
        }.items()
    }
    found["tick"] = count(lambda: run.feed(Tick()))
    sends: Sequence[Send] = ()

    def restart() -> None:
        nonlocal sends
        sends = run.restart("part 1.3")

    found["death and start"] = count(restart)
    return found | {"sends": len(sends), "bytes": sum(len(encode(send.message)) for send in sends)}


@pytest.mark.timeout(120)
def test_no_cost_of_the_coordinator_grows_with_the_run() -> None:
    """2,000 replicas of 8 machines, and 8 shards, cost what 3 replicas cost."""
    few, many = costs(Run(3)), costs(Run(MANY))
    assert many == few
    assert many["sends"] == MACHINES + SHARDS, "the parts of the replica and the shards"


def scheduler_costs(replicas: int) -> list[int]:
    """The lines executed for a result and for a look when nothing is due."""
    work = WorkScheduler(1, backups=False)
    for replica in range(replicas):
        work.add(replica, 0.0)
    work.begin(1, [WorkUnit(0, n, 1) for n in range(4 * replicas)])
    given = dict(work.schedule(0.0))
    result = AssignmentResult(given[1].sequence, 1, given[1].unit, 0.5, 1)
    count = Counter()
    return [
        count(lambda: work.computed(1, 0, result, 0.1)),
        count(lambda: work.schedule(0.1)),
        count(lambda: work.resend(0.2, 1.0)),
        count(lambda: work.stalled(0.2, lambda replica: 10.0)),
    ]


def test_neither_does_that_of_work_units() -> None:
    assert scheduler_costs(MANY) == scheduler_costs(3)


def test_a_counter_counts() -> None:
    """A loop over more hosts is seen."""
    count, total = Counter(), 0

    def look(n: int) -> None:
        nonlocal total
        for one in range(n):
            total += one

    assert count(lambda: look(100)) >= count(lambda: look(10)) + 90
