"""A session: one replica that plays a step whenever it is asked to.

Predictions, evaluations and tests stand on it. Its coordinator waits for each answer; when a host dies or
fails, the session ends with one clear error.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Literal, Self, TypeVar, get_args

import numpy as np

from partita.engine.drivers.checks import check_choice, check_plan, check_seconds
from partita.engine.drivers.data import check_data
from partita.engine.drivers.step import HostError, Sent, Step
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
from partita.engine.transport.mailbox import MAX_PAYLOAD
from partita.engine.transport.payload import Payload
from partita.partitioner.plan import Plan

Hosts = Literal["threads", "processes"]
Answer = TypeVar("Answer", bound=Message)


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
        timeout_s: float = 300.0,
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
            ValueError: a parameter is missing, or a machine's are too many for a message.
            HostError: a host fails or does not come up.
        """
        check_plan(plan)
        check_choice(hosts, "hosts is", get_args(Hosts))
        check_seconds(timeout_s, "timeout_s is")
        missing = [name for name in plan.graph.parameters if name not in parameters]
        if missing:
            raise ValueError(f"the parameters have no {missing[0]!r}; give all of {plan.graph.name}'s")
        self._plan, self._timeout_s, self._train = plan, timeout_s, train
        self._fed = False
        self._layout = layout_of(plan, shards=1)
        self._check_sizes()
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
            ValueError: the batch does not fit the network, or there is nothing of a name to collect.
            HostError: a host fails, dies, or does not answer in time.
        """
        real = self._plan.batch if examples is None else examples
        batch = self._checked(batch, real, collect)
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

    def _checked(
        self, batch: Mapping[str, Array] | None, real: int, collect: tuple[str, ...]
    ) -> Mapping[str, Array] | None:
        size, graph = self._plan.batch, self._plan.graph
        if not 1 <= real <= size or (self._train and real < size):
            least = size if self._train else 1
            raise ValueError(f"{real} examples of a batch of {size} cannot be played; give {least} to {size}")
        known = {"parameters", "gradient", *(grid.name for grid in graph.computed)}
        if self._train:
            known |= {edge.name for name in graph.needs_error for edge in self._plan.ownership.edges(name)}
        for name in collect:  # of a string, its letters
            if name not in known:
                raise ValueError(
                    f"cannot collect {name!r}; give a tuple of some of {', '.join(sorted(known))}"
                )
        if batch is None:
            if not self._fed:
                raise ValueError("the first step has no last batch to play again; give it one")
            return None
        arrays = check_data(graph, batch, targets=bool(graph.losses), precision=self._plan.precision)
        examples = len(next(iter(arrays.values())))
        if examples != size:
            raise ValueError(f"the batch has {examples} examples, but the plan is for {size}; give {size}")
        self._fed = True
        return arrays

    def _check_sizes(self) -> None:
        """A machine's parameters come in one message."""
        gib, item_bytes = float(1 << 30), np.dtype(self._plan.precision).itemsize
        for machine in range(len(self._plan.cluster)):
            n_bytes = self._layout.machine_size(machine) * item_bytes
            if n_bytes > MAX_PAYLOAD:
                raise ValueError(
                    f"machine {machine} holds {n_bytes / gib:.2f} GiB of parameters, more than the "
                    f"{MAX_PAYLOAD / gib:.2f} GiB that one message carries; use more machines"
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
