"""A session: one replica that plays a step whenever it is asked to.

Predictions, evaluations and tests stand on it. Its coordinator waits for each answer; when a host dies or
fails, the session ends with one clear error.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal, Self, TypeVar

import numpy as np

from partita.engine.kernels.kernel import Array
from partita.engine.launch.launcher import Launcher, ThreadLauncher
from partita.engine.launch.processes import ProcessLauncher
from partita.engine.parameters.layout import gather, scatter
from partita.engine.parameters.rules import Rule
from partita.engine.parameters.vector import Vector
from partita.engine.protocol.events import Received
from partita.engine.protocol.messages import (
    Assign,
    Directory,
    Failed,
    Heartbeat,
    Hello,
    Informed,
    Load,
    Message,
    Play,
    Played,
    Ready,
    Stop,
)
from partita.engine.protocol.names import part_name
from partita.engine.runtime.buffers import layout_of
from partita.engine.runtime.feed import node_major
from partita.engine.runtime.session import SessionTask
from partita.engine.runtime.task import pack_task
from partita.engine.transport.payload import Payload
from partita.partitioner.plan import Plan

Hosts = Literal["threads", "processes"]
Answer = TypeVar("Answer", bound=Message)


class HostError(RuntimeError):
    """What a host ran into, in one sentence. Its own traceback, if there is one, is the note.

    Attributes:
        host: its name.
    """

    def __init__(self, host: str, reason: str, remote_traceback: str = "") -> None:
        super().__init__(f"{host}: {reason}")
        self.host = host
        if remote_traceback:
            self.add_note(f"On {host}:\n{remote_traceback}")


@dataclass(frozen=True)
class Sent:
    """What a part has sent to other parts in a step: messages, and bytes of their tensors."""

    messages: int
    n_bytes: int


@dataclass(frozen=True)
class Step:
    """What a step came to.

    Args:
        loss: the mean loss of the real examples; NaN where no loss was computed.
        correct: how many of them the losses found right.
        step_s: seconds of the slowest part.
        busy_s: seconds in kernels, for each part.
        sent: what each part has sent to others.
        states: what was collected, by buffer: node-major, `[*grid, batch]`.
        vectors: collected parameters or gradients, whole, by their name: "gradient" -> {"dense.weight": ...}.
    """

    loss: float
    correct: int
    step_s: float
    busy_s: tuple[float, ...]
    sent: tuple[Sent, ...]
    states: Mapping[str, Array] = field(default_factory=dict)
    vectors: Mapping[str, dict[str, Vector]] = field(default_factory=dict)


class Session:
    """Plays steps of one replica of a plan, on threads of this process or on processes of this machine.

    Use it as a context manager. It belongs to one thread.
    """

    def __init__(
        self,
        plan: Plan,
        parameters: Mapping[str, Vector],
        *,
        train: bool = False,
        rule: Rule | None = None,
        hosts: Hosts = "threads",
        timeout_s: float = 60.0,
    ) -> None:
        """Starts the hosts and gives them their parameters.

        Args:
            plan: what to play; `plan.for_prediction()` to leave the losses out.
            parameters: every parameter of the network by name, `[*shape]`, of the plan's precision.
            train: play the way down too.
            rule: what changes the parameters after each step, on the spot.
            hosts: "threads" of this process, or "processes" that talk ZeroMQ over loopback.
            timeout_s: how long any answer may take.

        Raises:
            ValueError: a parameter is missing.
            HostError: a host fails or does not come up.
        """
        missing = [name for name in plan.graph.parameters if name not in parameters]
        if missing:
            raise ValueError(f"the parameters have no {missing[0]!r}; give all of {plan.graph.name}'s")
        self._plan, self._timeout_s = plan, timeout_s
        self._layout = layout_of(plan, shards=1)
        self._tasks = [SessionTask(plan, m, train, rule) for m in range(len(plan.cluster))]
        self._names = [part_name(0, m) for m in range(len(plan.cluster))]
        self._step = 0
        self._launcher: Launcher = ThreadLauncher() if hosts == "threads" else ProcessLauncher()
        try:
            self._assemble()
            self.load(parameters)
        except BaseException:
            self._launcher.close(patience_s=0.0)
            raise

    @property
    def launcher(self) -> Launcher:
        """Where the hosts are."""
        return self._launcher

    def load(self, parameters: Mapping[str, Vector]) -> None:
        """Replaces the parameters."""
        for name, slots in zip(self._names, self._layout.machines, strict=True):
            self._say(name, Load(), gather(slots, parameters, self._plan.precision))
        self._answers(Ready)

    def step(
        self,
        batch: Mapping[str, Array] | None = None,
        *,
        examples: int | None = None,
        collect: tuple[str, ...] = (),
    ) -> Step:
        """Plays a step.

        Args:
            batch: inputs (and targets, if the plan has losses) by name, `[batch, *shape]`; None plays the
                last again.
            examples: how many of the batch are real; all if not given.
            collect: states by the layer's name, errors by the buffer's (`h1<h2`), "parameters", "gradient".

        Raises:
            HostError: a host fails, dies, or does not answer in time.
        """
        real = self._plan.batch if examples is None else examples
        for task, name in zip(self._tasks, self._names, strict=True):
            inputs = None if batch is None else list(self._inputs(task, batch))
            self._say(name, Play(self._step, real, collect), inputs)
        answers = self._answers(Played)
        self._step += 1
        played = [answer for answer, _ in answers]
        judged = bool(self._plan.graph.losses)
        states, vectors = self._joined(collect, [payload for _, payload in answers])
        return Step(
            sum(p.loss for p in played) / real if judged else float("nan"),
            sum(p.correct for p in played),
            max(p.step_s for p in played),
            tuple(p.busy_s for p in played),
            tuple(Sent(p.sent_messages, p.sent_bytes) for p in played),
            states,
            vectors,
        )

    def close(self) -> None:
        """Stops every host."""
        for name in self._names:
            self._say(name, Stop())
        self._launcher.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close() if kind is None else self._launcher.close(patience_s=0.0)

    def _assemble(self) -> None:
        for name in self._names:
            self._launcher.launch(name, 0)
        for name, (hello, _) in zip(self._names, self._answers(Hello), strict=True):
            self._launcher.reach(name, 0, hello.endpoint)
        for task, name in zip(self._tasks, self._names, strict=True):
            self._say(name, Assign(self._plan.graph.name), pack_task(task))
        self._answers(Ready)
        for name in self._names:
            self._say(
                name, Directory(tuple(peer for peer in self._launcher.peers if peer.name != name), revision=1)
            )
        self._answers(Informed)
        for name in self._names:
            self._say(name, Heartbeat(0))

    def _inputs(self, task: SessionTask, batch: Mapping[str, Array]) -> Iterator[Array]:
        for operand in task.inputs:
            grid = self._plan.graph[operand.buffer]
            labels = grid.is_given and getattr(grid.layer, "classes", None) is not None
            dtype = np.int64 if labels else self._plan.precision
            shape = (*grid.shape, self._plan.batch)
            for rows in operand.rows:
                yield np.ascontiguousarray(node_major(batch[operand.buffer], rows, shape), dtype)

    def _say(self, name: str, message: Message, payload: object = None) -> None:
        self._launcher.mailbox.send(name, message, payload)  # type: ignore[arg-type]

    def _answers(self, kind: type[Answer]) -> list[tuple[Answer, Payload | None]]:
        """The next message of this kind from every host, in the order of the machines."""
        found: dict[str, tuple[Answer, Payload | None]] = {}
        began = time.monotonic()
        while len(found) < len(self._names):
            for event in self._launcher.mailbox.receive(0.1):
                self._check(event)
                if isinstance(event.message, kind):
                    assert event.payload is None or isinstance(event.payload, Payload)
                    found.setdefault(event.sender, (event.message, event.payload))
            for name, _, reason in self._launcher.ended():
                raise HostError(name, reason)
            if time.monotonic() - began > self._timeout_s:
                missing = ", ".join(name for name in self._names if name not in found)
                raise HostError(missing, f"no {kind.__name__} for {self._timeout_s:.0f} s")
        return [found[name] for name in self._names]

    def _check(self, event: Received) -> None:
        if isinstance(event.message, Failed):
            raise HostError(event.sender, event.message.reason, event.message.traceback)

    def _joined(
        self, collect: tuple[str, ...], payloads: list[Payload | None]
    ) -> tuple[dict[str, Array], dict[str, dict[str, Vector]]]:
        """What the parts sent back, put together; a payload holds a machine's rows of each name in order."""
        graph, dtype = self._plan.graph, np.dtype(self._plan.precision)
        states: dict[str, Array] = {}
        vectors: dict[str, dict[str, Vector]] = {}
        for name in collect:
            if name in ("parameters", "gradient"):
                vectors[name] = {p.name: np.zeros(p.shape, dtype) for p in graph.parameters.values()}
            else:
                grid = graph[name.partition("<")[0]]
                states[name] = np.zeros((*grid.shape, self._plan.batch), dtype)
        for machine, payload in enumerate(payloads):
            self._take(machine, payload, collect, states, vectors)
        return states, vectors

    def _take(
        self,
        machine: int,
        payload: Payload | None,
        collect: tuple[str, ...],
        states: dict[str, Array],
        vectors: dict[str, dict[str, Vector]],
    ) -> None:
        targets: list[Array] = []
        finish: list[Callable[[], None]] = []
        for name in collect:
            if name in vectors:
                slots = self._layout.machines[machine]
                vector = np.zeros(self._layout.machine_size(machine), self._plan.precision)
                targets.append(vector)
                finish.append(lambda s=slots, v=vector, n=name: scatter(s, v, vectors[n]))  # type: ignore[misc]
            elif (rows := self._plan.ownership.rows(name.partition("<")[0], machine)) is not None:
                targets.append(states[name][rows[0] : rows[1]])
        if payload is not None:
            payload.copy_into(*targets)
        for act in finish:
            act()
