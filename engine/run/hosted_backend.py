"""The backend of a session that plays each part on a host of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeVar

from typing_extensions import override

from partita.engine.kernels.kernel import Array
from partita.engine.launch.launcher import Launcher
from partita.engine.parameters.vector import Vector
from partita.engine.protocol.clocks import Offset, RoundTrip, offset_of
from partita.engine.protocol.events import Received
from partita.engine.protocol.messages import (
    Directory,
    DirectoryAck,
    Failed,
    Heartbeat,
    Hello,
    Load,
    Message,
    Ping,
    Play,
    Played,
    Pong,
    Ready,
    SetUp,
    SetUpProgress,
    Stop,
)
from partita.engine.protocol.names import part_name
from partita.engine.run.backends import Backend, PartStep
from partita.engine.run.phases import OnPhase, compiling, silent, starting
from partita.engine.run.step import HostError, Sent
from partita.engine.runtime.task import HostTask, pack_task
from partita.engine.transport.payload import Payload
from partita.layers.text import counted

Answer = TypeVar("Answer", bound=Message)

PINGS: Final = 16
"""Round trips to each part by which its clock is compared with this thread's."""


class HostedTask(HostTask, Protocol):
    """Task of a host of a backend: its role plays a step for each `Play`."""

    @property
    def machine(self) -> int:
        """Index of the part; determines the host's name."""

    @property
    def title(self) -> str:
        """Name of the task in messages."""


class HostedBackend(Backend):
    """Plays each part on a host of its own, and exchanges messages with the hosts."""

    def __init__(
        self, tasks: Sequence[HostedTask], launcher: Launcher, *, timeout_s: float, on_phase: OnPhase = silent
    ) -> None:
        """Starts the hosts.

        Args:
            tasks: one for each host.
            launcher: starts the hosts; the backend closes it.
            timeout_s: seconds without a sign of life after which hosts that have not answered have failed.
            on_phase: called with the phases of the start.

        Raises:
            HostError: a host fails, dies, or is silent for too long.
        """
        self.launcher, self._timeout_s, self._on_phase = launcher, timeout_s, on_phase
        self._names = [part_name(0, task.machine) for task in tasks]
        self._compiled: dict[str, int] = {}
        try:
            self._assemble(tasks)
        except BaseException:
            self.close(orderly=False)
            raise

    @override
    def load(self, vector: Callable[[int, Vector | None], Vector]) -> None:
        for machine, name in enumerate(self._names):
            self._say(name, Load(), vector(machine, None))
        self._answers(Ready, "taking in its parameters")

    @override
    def play(
        self,
        step: int,
        inputs: Sequence[Sequence[Array]] | None,
        real: int,
        collect: tuple[str, ...],
        *,
        trace: bool = False,
    ) -> list[PartStep]:
        for n, name in enumerate(self._names):
            self._say(name, Play(step, real, collect, trace), None if inputs is None else list(inputs[n]))
        return [
            PartStep(
                played.loss,
                played.correct,
                played.step_s,
                played.busy_s,
                Sent(played.sent_messages, played.sent_bytes),
                payload,
            )
            for played, payload in self._answers(Played, "playing a step")
        ]

    def clocks(self) -> list[Offset]:
        """See `Backend`. Measures one part after another, so that none waits for another's answer."""
        return [offset_of([self._round(name) for _ in range(PINGS)]) for name in self._names]

    def _round(self, name: str) -> RoundTrip:
        self._say(name, Ping(time.perf_counter()))
        [(pong, _)] = self._answers(Pong, "sending its clock", names=[name])
        return RoundTrip(pong.sent_s, pong.received_s, pong.replied_s, time.perf_counter())

    @override
    def close(self, *, orderly: bool = True) -> None:
        if not orderly:
            self.launcher.close(patience_s=0.0)
            return
        for name in self._names:
            self._say(name, Stop())
        self.launcher.close()

    def _assemble(self, tasks: Sequence[HostedTask]) -> None:
        def on_answer(ready: int) -> None:
            hosts = counted(len(tasks), *self.launcher.kind)
            self._on_phase(starting(hosts, ready=ready, compiled=sum(self._compiled.values())))

        on_answer(0)
        for name in self._names:
            self.launcher.launch(name, 0)
        for name, (hello, _) in zip(self._names, self._answers(Hello, "importing"), strict=True):
            self.launcher.reach(name, 0, hello.endpoint)
        for task, name in zip(tasks, self._names, strict=True):
            self._say(name, SetUp(task.title), pack_task(task))
        self._answers(Ready, "setting up its task", on_answer=on_answer)
        for name in self._names:
            others = tuple(peer for peer in self.launcher.peers if peer.name != name)
            self._say(name, Directory(others, revision=1))
        self._answers(DirectoryAck, "taking in the addresses of the other hosts")
        for name in self._names:
            self._say(name, Heartbeat(0))

    def _say(self, name: str, message: Message, payload: object = None) -> None:
        self.launcher.mailbox.send(name, message, payload)  # type: ignore[arg-type]

    def _report_compiling(self) -> None:
        self._on_phase(compiling(sum(self._compiled.values())))

    def _answers(
        self,
        kind: type[Answer],
        doing: str,
        *,
        names: Sequence[str] | None = None,
        on_answer: Callable[[int], None] | None = None,
    ) -> list[tuple[Answer, Payload | None]]:
        """Receives the next message of a kind from each of some hosts.

        Args:
            kind: type of the messages.
            doing: work of a host that has not answered, for the error.
            names: names of the hosts; all, in the order of the machines, if not given.
            on_answer: called with the number of answers when it has grown, or functions were compiled.
        """
        names = self._names if names is None else names
        found: dict[str, tuple[Answer, Payload | None]] = {}
        alive_at = time.monotonic()
        while len(found) < len(names):
            for event in self.launcher.mailbox.receive(0.1):
                _check(event)
                if isinstance(event.message, SetUpProgress):
                    self._compiled[event.sender], alive_at = event.message.compiled, time.monotonic()
                    self._report_compiling() if on_answer is None else on_answer(len(found))
                elif isinstance(event.message, kind):
                    assert event.payload is None or isinstance(event.payload, Payload)
                    found.setdefault(event.sender, (event.message, event.payload))
                    if on_answer is not None:
                        on_answer(len(found))
            if self.launcher.began():
                alive_at = time.monotonic()
            for name, _, reason in self.launcher.ended():
                raise HostError(name, reason)
            if time.monotonic() - alive_at > self._timeout_s:
                missing = ", ".join(name for name in names if name not in found)
                silence = f"no sign of life for {self._timeout_s:.0f} s while {doing}"
                raise HostError(missing, f"{silence}; look at what it printed, or allow more by timeout_s")
        return [found[name] for name in names]


def _check(event: Received) -> None:
    if isinstance(event.message, Failed):
        raise HostError(event.sender, event.message.reason, event.message.traceback)
