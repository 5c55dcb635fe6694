"""The machines of a driver's program against each other: parts and coordinator on a network without order.

Numbers are whole, so sums are exact in any order, and a run can be compared with one process on joined
batches.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from partita.engine.protocol import Message, Topology
from partita.engine.protocol import messages as m
from partita.engine.protocol import replica_messages as rm
from partita.engine.protocol.actions import Plan, Program, Work
from partita.engine.protocol.coordinator import Coordinator
from partita.engine.protocol.coordinator_effects import (
    AbortRun,
    Commit,
    Committed,
    EndHosts,
    EndRun,
    Launched,
    Opened,
    Progress,
    Restart,
    RunSettings,
    StopRequested,
    Timeouts,
    Warn,
)
from partita.engine.protocol.events import Died, Persist, Persisted, Received, Refuse, Send, Tick
from partita.engine.protocol.exchange import AddChunk, CopyChunk
from partita.engine.protocol.host import BuildRole, EndHost, HostMachine, Reach, RoleBuilt
from partita.engine.protocol.joined_mode import JoinedMode
from partita.engine.protocol.joined_work import JoinedWork
from partita.engine.protocol.names import COORDINATOR, part_indices, part_name
from partita.engine.protocol.part import LookForWaits, Part
from partita.engine.protocol.program_effects import (
    Applied,
    ApplyUpdate,
    CopyVector,
    Deliver,
    PartSeat,
    RestartSteps,
    RunStep,
    SharedSpan,
    StateReceived,
    StepDone,
)
from partita.engine.protocol.views import JoinedBatches, Member, Outline

SIZE = 5
"""Numbers of each machine."""


class Numbers(tuple[int, ...]):
    """A payload: some whole numbers, of four bytes each."""

    @property
    def n_bytes(self) -> int:
        return 4 * len(self)


def everything(run: Outline) -> Plan:
    """All epochs at once."""
    yield Work(epochs=run.epochs)


def gradient_of(parameters: Sequence[int], examples: range) -> list[int]:
    """A gradient that depends on every example and on the parameters, as the sum over the examples."""
    return [sum((p + 3 * i + 5 * e) % 7 for e in examples) for i, p in enumerate(parameters)]


def reference(steps: Sequence[range]) -> list[int]:
    """The parameters of each machine after these joined batches, in one process."""
    parameters = [0] * SIZE
    for examples in steps:
        parameters = [p - g for p, g in zip(parameters, gradient_of(parameters, examples), strict=True)]
    return parameters


@dataclass
class Process:
    """One process of a part: its machines, and its arrays."""

    host: HostMachine
    vectors: dict[str, list[int]]

    def carry_out(self, effect: Any, fleet: Fleet) -> None:
        name, incarnation = self.host.name, self.host.incarnation
        match effect:
            case Send(to=to, message=message, payload=span):
                payload = None if span is None else Numbers(self.vectors[span.vector][span.start : span.stop])
                fleet.send(name, incarnation, to, message, payload)
            case BuildRole():
                fleet.give(self, RoleBuilt(fleet.build(self)))
            case AddChunk(span=span, payload=payload, divisor=divisor):
                old = self.vectors[span.vector][span.start : span.stop]
                summed = [(a + b) / divisor for a, b in zip(old, payload, strict=True)]
                self.vectors[span.vector][span.start : span.stop] = map(int, summed)
            case CopyChunk(span=span, payload=payload):
                self.vectors[span.vector][span.start : span.stop] = list(payload)
            case RunStep(number=number, step=step, position=position, rank=rank, replicas=replicas):
                examples = fleet.share(position, rank, replicas)
                self.vectors["gradient"] = gradient_of(self.vectors["parameters"], examples)
                fleet.computed[step] = fleet.joined(position, replicas)
                done = StepDone(number, len(examples), 1.0, 1)
                if name in fleet.slow:
                    fleet.slow[name].append((self, done))
                else:
                    fleet.later(self, done)
            case ApplyUpdate(spans=spans):
                for span in spans:
                    for i in range(span.start, span.stop):
                        self.vectors["parameters"][i] -= self.vectors["gradient"][i]
                fleet.later(self, Applied())
            case CopyVector(source=span, target=target):
                numbers = self.vectors[span.vector][span.start : span.stop]
                self.vectors[target][span.start : span.stop] = numbers
            case Persist(checkpoint=checkpoint, version=version):
                fleet.files[name, checkpoint] = (version, list(self.vectors["parameters"]))
                fleet.later(self, Persisted(checkpoint, version, f"{name}.{checkpoint}", "00"))
            case Refuse():
                fleet.refused.append((name, effect))
            case EndHost():
                fleet.processes.pop(name, None)
            case RestartSteps() | StateReceived() | LookForWaits() | Deliver() | Reach():
                pass
            case _:
                raise AssertionError(effect)


def work_of(process: Process) -> JoinedWork | None:
    """The work of a part; None before it is set up."""
    role = process.host.role
    return role.work if isinstance(role, Part) and isinstance(role.work, JoinedWork) else None


class Fleet:
    """A run of replicas of some machines, its coordinator, and the network between them."""

    def __init__(
        self,
        replica: Callable[[Member], Program],
        *,
        replicas: int = 2,
        machines: int = 1,
        epochs: int = 2,
        examples: int = 20,
        batch: int = 3,
        seed: int = 0,
        loss: float = 0.0,
        schedule: Callable[[Outline], Plan] = everything,
        timeouts: Timeouts | None = None,
        shared: bool = False,
        least: int | None = None,
        sharded: bool = False,
        resumed: Fleet | None = None,
    ) -> None:
        self.random = random.Random(seed)
        self.replica, self.loss, self.machines, self.shared = replica, loss, machines, shared
        self.batches = JoinedBatches(examples, batch)
        self.total = epochs * examples
        self.now = 0.0
        self.coordinator = Coordinator(
            schedule,
            Outline(epochs, examples, batch, replicas),
            JoinedMode(position=resumed.commits[-1].done[0][1] if resumed else 0, sharded=sharded),
            Topology(replicas, machines, 0),
            settings=RunSettings(
                run="r", least=least, timeouts=timeouts or Timeouts(checkpoint_every_s=None)
            ),
        )
        self.processes: dict[str, Process] = {}
        self.pending: list[Callable[[], None]] = []
        self.slow: dict[str, list[tuple[Process, StepDone]]] = {}  # parts, and steps that do not end yet
        self.places: dict[str, str] = {}  # labels of computers, by host
        self.broken: set[str] = set()  # hosts that cannot be started again
        self.computed: dict[int, range] = {}  # the examples of each step, when it was computed last
        self.files: dict[tuple[str, int], tuple[int, list[int]]] = dict(resumed.files) if resumed else {}
        self.refused: list[tuple[str, Refuse]] = []
        self.warnings: list[str] = []
        self.progress: list[Progress] = []
        self.commits: list[Commit] = list(resumed.commits) if resumed else []
        self.views: list[rm.View] = []
        self.end: EndRun | AbortRun | None = None
        self.ends: dict[str, Process] = {}
        self._tell(Opened())

    # What the bodies ask.

    def joined(self, position: int, replicas: int) -> range:
        return range(position, self.batches.after(position, replicas))

    def share(self, position: int, rank: int, replicas: int) -> range:
        joined = self.joined(position, replicas)
        return joined[rank * self.batches.batch : (rank + 1) * self.batches.batch]

    def build(self, process: Process) -> Part:
        replica, machine = part_indices(process.host.name) or (0, 0)
        committed = self.commits[-1] if self.commits else None
        step = 0
        if committed is not None:
            entry = committed.entries[machine]
            step, parameters = self.files[entry.shard, committed.checkpoint]
            process.vectors["parameters"] = list(parameters)
        everyone = tuple(range(self.machines))
        spans = (
            (SharedSpan(0, 0, 2, everyone), SharedSpan(machine + 1, 2, SIZE, (machine,)))
            if self.shared
            else (SharedSpan(machine, 0, SIZE, (machine,)),)
        )
        seat = PartSeat(
            replica=replica,
            machine=machine,
            machines=self.machines,
            incarnation=process.host.incarnation,
            size=SIZE,
            spans=spans,
            exchanges=self.machines + 1,
            step=step,
        )
        return Part(self.replica, JoinedWork(seat, self.batches), version=step)

    # The network.

    def send(self, sender: str, incarnation: int, to: str, message: Message, payload: object) -> None:
        if isinstance(message, rm.View):
            self.views.append(message)
        if self.random.random() < self.loss:
            return
        event = Received(sender, incarnation, m.decode(m.encode(message)), payload)
        target = self.processes.get(to)
        copies = 2 if self.random.random() < self.loss else 1
        for _ in range(copies):
            if to == COORDINATOR:
                self.pending.append(lambda: self._tell(event))
            elif target is not None:
                self.pending.append(lambda: self.give(target, event))

    def received(self, sender: str, message: Message, payload: tuple[int, ...] = ()) -> Received:
        """A message as a part gets it."""
        known = self.processes.get(sender)
        return Received(sender, known.host.incarnation if known else 0, message, Numbers(payload))

    def later(self, process: Process, event: object) -> None:
        self.pending.append(lambda: self.give(process, event))

    def give(self, process: Process, event: object) -> None:
        if self.processes.get(process.host.name) is not process:
            return
        if isinstance(event, Received) and event.sender in self.processes and event.sender != COORDINATOR:
            known = process.host.peers.get(event.sender)
            if known != event.incarnation:  # the transport takes messages of known peers alone
                return
        for effect in process.host.receive(event, self.now):
            process.carry_out(effect, self)
        process.host.validate()

    def _tell(self, event: Any) -> None:
        if self.end is not None:
            return
        for effect in self.coordinator.receive(event, self.now):
            self._interpret(effect)
        self.coordinator.validate()

    def _interpret(self, effect: Any) -> None:
        match effect:
            case Send(to=to, message=message):
                self.send(COORDINATOR, 0, to, message, None)
            case Restart(hosts=hosts):
                for name, incarnation in hosts:
                    self._launch(name, incarnation)
            case EndHosts(hosts=hosts):
                for name in hosts:
                    self.processes.pop(name, None)
            case Commit():
                self.commits.append(effect)
                self.pending.append(lambda: self._tell(Committed(effect.checkpoint)))
            case Progress():
                self.progress.append(effect)
            case Warn(text=text):
                self.warnings.append(text)
            case EndRun() | AbortRun():
                self.end = effect
                self.ends = dict(self.processes)

    def _launch(self, name: str, incarnation: int) -> None:
        self.processes.pop(name, None)
        if name in self.broken:
            self.pending.append(lambda: self._tell(Died(name, incarnation, "it does not start")))
            return
        host = HostMachine(name, incarnation, endpoint=f"tcp://{name}", versions={})
        self.processes[name] = Process(host, {name: [0] * SIZE for name in ("parameters", "gradient", "sum")})
        self.pending.append(
            lambda: self._tell(Launched(name, incarnation, "key", self.places.get(name, "here")))
        )

    # What a test does.

    def kill(self, name: str) -> None:
        """Ends a process; the coordinator is told of it."""
        process = self.processes.pop(name, None)
        if process is not None:
            self.pending.append(lambda: self._tell(Died(name, process.host.incarnation, "killed")))

    def stop(self) -> None:
        """Presses Ctrl-C."""
        self._tell(StopRequested())

    def step(self) -> None:
        """Delivers one event, any of those under way; sometimes time passes."""
        if not self.pending or self.random.random() < 0.02:
            self.now += 0.1
            self._tell(Tick())
            for process in list(self.processes.values()):
                self.give(process, Tick())
        if self.pending:
            chosen = self.random.randrange(len(self.pending))
            self.pending[chosen], self.pending[-1] = self.pending[-1], self.pending[chosen]
            self.pending.pop()()

    def run(self, *, until: Callable[[Fleet], bool] = lambda fleet: False, most: int = 60_000) -> Fleet:
        """Plays on until the run ends, or until something holds."""
        for _ in range(most):
            if self.end is not None or until(self):
                return self
            self.step()
        raise AssertionError(f"no end after {most} events; {self.warnings[-5:]}, {self.state()}")

    def state(self) -> str:
        """The parts, for messages of failures."""
        works = {name: work_of(process) for name, process in self.processes.items()}
        return ", ".join(
            f"{name}: {work.stage.name} {work.step} {work.running.action} {list(work.waits())}"
            for name, work in works.items()
            if work is not None
        )

    def parameters(self) -> dict[str, list[int]]:
        """The parameters of every part of the last view in the end."""
        members = {name for r in self.views[-1].members for name in self.parts_of(r)}
        return {name: process.vectors["parameters"] for name, process in self.ends.items() if name in members}

    def parts_of(self, replica: int) -> list[str]:
        return [part_name(replica, machine) for machine in range(self.machines)]

    def steps(self) -> list[range]:
        """The joined batches of the run, in order, without those of views that were given up."""
        works = [work_of(process) for process in self.ends.values()]
        last = max((work.step or 0 for work in works if work is not None), default=1 << 32)
        return [self.computed[step] for step in sorted(self.computed) if step < last]


def parts(replicas: int, machines: int) -> list[str]:
    return [part_name(r, machine) for r in range(replicas) for machine in range(machines)]
