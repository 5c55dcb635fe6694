"""A Sandblaster run without hosts: shards of one number each, and parts that compute at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from partita.engine import Outcome
from partita.engine.protocol import Coordinator, EvaluationMode, Message, Topology
from partita.engine.protocol.batch_messages import (
    Assignment,
    AssignmentResult,
    Command,
    CommandResult,
    MissingUnits,
)
from partita.engine.protocol.checkpoint_messages import Save, Saved
from partita.engine.protocol.commands import (
    Combine,
    Dots,
    Evaluate,
    Iterated,
    Largest,
    Restore,
    Scalars,
    Segment,
    Snapshot,
    Steps,
    axpy,
    dot,
    work_units_of,
)
from partita.engine.protocol.coordinator_effects import (
    AppendJournal,
    Commit,
    Committed,
    CoordinatorEffect,
    CoordinatorEvent,
    Launched,
    Opened,
    Restart,
    RunSettings,
    Timeouts,
)
from partita.engine.protocol.events import Died, Received, Send
from partita.engine.protocol.journaled_plan import RecordedAnswer
from partita.engine.protocol.messages import Directory, DirectoryAck, Hello, Ready, SetUp
from partita.engine.protocol.names import part_indices, shard_index
from partita.engine.protocol.views import Outline

PORTIONS = 7
UNIT_SIZE = 2
STEPS = 4


def descent(steps: int = STEPS) -> Steps:
    """Gradient descent on the sum over portions p of (x - p)^2 / 2, in each of the shards' numbers."""
    evaluate = Evaluate((Segment("g", 0, PORTIONS),))
    found = yield (evaluate, dot("g", "g"))
    for n in range(steps):
        found = yield (axpy("x", -0.1, "g"), evaluate, dot("g", "g"))
        yield Iterated(n + 1, found[0], found[2], 0.1, n + 2)
    return Outcome("stopped", f"{steps} steps are done")


@dataclass
class Shard:
    """Vectors of one number, and files of them by checkpoint."""

    start: float
    vectors: dict[str, float] = field(default_factory=dict)
    number: int = 0
    evaluates: Command | None = None
    taken: dict[int, float] = field(default_factory=dict)
    answer: CommandResult | None = None


@dataclass
class Stage:
    """The hosts around a coordinator. `deliver` returns whether a message arrives."""

    coordinator: Coordinator
    shards: int = 2
    deliver: Callable[[str, Message], bool] = lambda to, message: True
    now: float = 0.0
    effects: list[CoordinatorEffect] = field(default_factory=list)
    events: deque[CoordinatorEvent] = field(default_factory=deque)
    incarnations: dict[str, int] = field(default_factory=dict)
    hosts: dict[str, Shard] = field(default_factory=dict)
    files: dict[tuple[str, int], dict[str, float]] = field(default_factory=dict)
    evaluations: int = 0

    def play(self, *, until: Callable[[], bool] = lambda: False) -> None:
        """Plays until nothing happens any more, or the condition holds."""
        if not self.events and not self.incarnations:
            self.events.append(Opened())
        while self.events and not until():
            self.feed(self.events.popleft())

    def feed(self, event: CoordinatorEvent, *, wait_s: float = 0.01) -> None:
        """Gives the coordinator an event, after so many seconds."""
        self.now += wait_s
        for effect in self.coordinator.receive(event, self.now):
            self.effects.append(effect)
            match effect:
                case Restart(hosts=hosts, checkpoint=checkpoint):
                    for name, incarnation in hosts:
                        self._launch(name, incarnation, checkpoint)
                case Commit(checkpoint=number):
                    self.events.append(Committed(number))
                case Send(to=to, message=message) if self.deliver(to, message):
                    self._hear(to, message)
        self.coordinator.validate()

    def die(self, name: str) -> None:
        """Ends a host's process."""
        self.feed(Died(name, self.incarnations[name], "it was killed"))

    def sent(self, kind: type[Message]) -> list[tuple[str, Message]]:
        """The messages of this kind that the coordinator has sent, and their receivers."""
        sent = [effect for effect in self.effects if isinstance(effect, Send)]
        return [(send.to, send.message) for send in sent if isinstance(send.message, kind)]

    @property
    def journal(self) -> list[RecordedAnswer]:
        """The journal that it wrote."""
        return [(e.digest, e.scalars) for e in self.effects if isinstance(e, AppendJournal)]

    @property
    def commits(self) -> list[Commit]:
        """The checkpoints that it committed."""
        return [effect for effect in self.effects if isinstance(effect, Commit)]

    def _launch(self, name: str, incarnation: int, checkpoint: int | None) -> None:
        self.incarnations[name] = incarnation
        index = shard_index(name)
        if index is not None:
            self.hosts[name] = shard = Shard(start=10.0 + index)
            self._restore(name, shard, checkpoint)
        self.events.append(Launched(name, incarnation, "key"))
        self._send(name, Hello(f"tcp://{name}", {}))

    def _restore(self, name: str, shard: Shard, checkpoint: int | None) -> None:
        start = {"x": shard.start}
        shard.vectors = dict(self.files[name, checkpoint] if checkpoint is not None else start)

    def _send(self, name: str, message: Message) -> None:
        self.events.append(Received(name, self.incarnations[name], message))

    def _hear(self, name: str, message: Message) -> None:
        match message:
            case SetUp():
                self._send(name, Ready())
            case Directory(revision=revision):
                self._send(name, DirectoryAck(revision))
            case Assignment():
                self._compute(name, message)
            case Command():
                self._command(name, self.hosts[name], message)
            case Save(checkpoint=checkpoint) if (name, checkpoint) in self.files:
                self._saved(name, checkpoint)

    def _compute(self, name: str, order: Assignment) -> None:
        """Computes at once: the part reads every shard's x, and contributes to every shard."""
        indices = part_indices(name)
        assert indices is not None
        loss = 0.0
        for shard_name, shard in self.hosts.items():
            command = shard.evaluates
            portions = range(order.first, order.first + order.count)
            loss += sum((shard.vectors["x"] - p) ** 2 / 2 for p in portions)
            if command is None or command.number != order.evaluation:
                continue
            shard.taken.setdefault(order.unit, sum(shard.vectors["x"] - p for p in portions))
            self._finish(shard_name, shard, command)
        self._send(name, AssignmentResult(order.sequence, order.evaluation, order.unit, loss, 0))

    def _command(self, name: str, shard: Shard, command: Command) -> None:
        if command.number < shard.number:
            return
        if command.number == shard.number:
            if shard.evaluates is None:
                assert shard.answer is not None
                self._send(name, shard.answer)
                return
            evaluate = next(one for one in command.operations if isinstance(one, Evaluate))
            units = range(len(work_units_of(evaluate, UNIT_SIZE)))
            lacks = tuple((n, n + 1) for n in units if n not in shard.taken)
            self._send(name, MissingUnits(command.number, lacks))
            return
        shard.number, shard.evaluates, shard.answer = command.number, None, None
        shard.taken.clear()
        self._do(name, shard, command, ())

    def _finish(self, name: str, shard: Shard, command: Command) -> None:
        evaluate = next(one for one in command.operations if isinstance(one, Evaluate))
        units = work_units_of(evaluate, UNIT_SIZE)
        if len(shard.taken) == len(units):
            shard.evaluates = None
            self.evaluations += 1
            shard.vectors["g"] = sum(shard.taken[n] for n in range(len(units)))
            after = command.operations[command.operations.index(evaluate) + 1 :]
            self._do(name, shard, Command(command.number, after), ())

    def _do(self, name: str, shard: Shard, command: Command, scalars: Scalars) -> None:
        v = shard.vectors
        for operation in command.operations:
            match operation:
                case Combine(to=to, terms=terms):
                    v[to] = sum(factor * v[vector] for factor, vector in terms)
                case Dots(left=left, right=right):
                    scalars += tuple(v[a] * v[b] for a in left for b in right)
                case Largest(vector=vector):
                    scalars += (abs(v[vector]),)
                case Snapshot(checkpoint=checkpoint):
                    self.files[name, checkpoint] = dict(v)
                    self._saved(name, checkpoint)
                case Restore(checkpoint=checkpoint):
                    self._restore(name, shard, checkpoint)
                    v = shard.vectors
                case Evaluate():
                    shard.evaluates = command
                    return
        shard.answer = CommandResult(command.number, scalars)
        self._send(name, shard.answer)

    def _saved(self, name: str, checkpoint: int) -> None:
        incarnation = self.incarnations[name]
        self._send(name, Saved(checkpoint, incarnation, self.hosts[name].number, "file", "hash"))


def staged(
    *,
    replicas: int = 2,
    machines: int = 1,
    shards: int = 2,
    begin: Callable[[], Steps] = descent,
    journal: Sequence[RecordedAnswer] = (),
    position: int = 0,
    timeouts: Timeouts | None = None,
) -> Stage:
    """Creates a run that has not started."""
    coordinator = Coordinator(
        lambda run: begin(),
        Outline(0, PORTIONS, 1, replicas),
        EvaluationMode(unit_size=UNIT_SIZE, position=position),
        Topology(replicas, machines, shards),
        journal=journal,
        settings=RunSettings(timeouts=timeouts or Timeouts()),
    )
    return Stage(coordinator, shards)
