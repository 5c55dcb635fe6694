"""The backend of a session that plays each part on a host of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from typing_extensions import override

from partita.engine.kernels.kernel import Array
from partita.engine.launch.launcher import Launcher
from partita.engine.parameters.vector import Vector
from partita.engine.protocol import messages as m
from partita.engine.protocol.clocks import Offset, RoundTrip, offset_of
from partita.engine.protocol.coordinator_effects import (
    Opened,
    RunSettings,
    Starting,
    Timeouts,
)
from partita.engine.protocol.events import Send
from partita.engine.protocol.membership import HeartbeatPolicy
from partita.engine.protocol.names import part_name
from partita.engine.protocol.session_coordinator import (
    Answered,
    Ask,
    Closed,
    Compiling,
    HostLost,
    SessionCoordinator,
)
from partita.engine.run.backends import Backend, PartStep
from partita.engine.run.phases import OnPhase, compiling, silent, starting
from partita.engine.run.step import HostError
from partita.engine.run.supervisor import Supervisor, Work
from partita.engine.runtime.host import versions
from partita.engine.runtime.task import HostTask
from partita.engine.transport.payload import Payload, PayloadLike
from partita.layers.text import counted

PINGS: Final = 16
"""Round trips to each part by which its clock is compared with this thread's."""

_LEAST_SILENCE_S: Final = 4.0


class HostedTask(HostTask, Protocol):
    """Task of a host of a backend: its role plays a step for each `Play`."""

    @property
    def machine(self) -> int:
        """Index of the part; determines the host's name."""


class HostedBackend(Backend, Work):
    """Plays each part on a host of its own, and exchanges messages with the hosts."""

    def __init__(
        self,
        tasks: Sequence[HostedTask],
        launcher: Launcher,
        *,
        timeout_s: float,
        silence_s: float | None = None,
        on_phase: OnPhase = silent,
    ) -> None:
        """Starts the hosts.

        Args:
            tasks: one for each host.
            launcher: starts the hosts; the backend closes it.
            timeout_s: seconds without a sign of life after which hosts that have not answered have failed.
            silence_s: seconds without any message after which a host has failed; `timeout_s` if not given.
            on_phase: called with the phases of the start.

        Raises:
            HostError: a host fails, dies, or is silent for too long.
        """
        self.launcher, self._on_phase = launcher, on_phase
        self._names: Final = [part_name(0, task.machine) for task in tasks]
        self._tasks: Final = dict(zip(self._names, tasks, strict=True))
        dead_s = max(silence_s or timeout_s, _LEAST_SILENCE_S)
        heartbeats = HeartbeatPolicy(suspect_s=dead_s / 2, dead_s=dead_s)
        timeouts = Timeouts(heartbeats=heartbeats, start_s=timeout_s)
        settings = RunSettings(versions=versions(), timeouts=timeouts)
        self._coordinator = SessionCoordinator(len(tasks), settings)
        self._supervisor = Supervisor(launcher, self._coordinator, self, warn=silent)
        self._payload_of: Callable[[str], PayloadLike] | None = None
        self._answers: dict[str, tuple[Any, Payload | None]] = {}
        try:
            self._supervisor.dispatch(Opened())
            self._supervisor.run_until(lambda: self._coordinator.is_begun)
        except BaseException:
            self.close(orderly=False)
            raise

    @override
    def load(self, vector: Callable[[int, Vector | None], Vector]) -> None:
        machines = {name: machine for machine, name in enumerate(self._names)}
        orders = dict.fromkeys(self._names, m.Load())
        self._ask(orders, m.Loaded, "taking in its parameters", lambda name: vector(machines[name], None))

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
        orders = dict.fromkeys(self._names, m.Play(step, real, collect, trace))
        given = None if inputs is None else dict(zip(self._names, map(list, inputs), strict=True))
        payload_of = None if given is None else given.__getitem__
        return [PartStep(*answer) for answer in self._ask(orders, m.Played, "playing a step", payload_of)]

    @override
    def clocks(self) -> list[Offset]:  # one part after another, so that none waits for another's answer
        return [offset_of([self._round(name) for _ in range(PINGS)]) for name in self._names]

    def _round(self, name: str) -> RoundTrip:
        [(pong, _)] = self._ask({name: m.Ping(time.perf_counter())}, m.Pong, "sending its clock")
        return RoundTrip(pong.sent_s, pong.received_s, pong.replied_s, time.perf_counter())

    def _ask(
        self,
        orders: Mapping[str, m.Message],
        answer: type[m.Message],
        doing: str,
        payload_of: Callable[[str], PayloadLike] | None = None,
    ) -> list[tuple[Any, Payload | None]]:
        """Sends an order to some hosts, and returns their answers in the same order.

        Args:
            orders: by the host's name.
            answer: type of the answers.
            doing: work of a host that has not answered, for the error.
            payload_of: returns the payload for a host; None where there is none.
        """
        self._payload_of, self._answers = payload_of, {}
        self._supervisor.dispatch(Ask(orders, answer, doing, has_payload=payload_of is not None))
        self._supervisor.run_until(lambda: self._coordinator.is_answered)
        return [self._answers[name] for name in orders]

    @override
    def close(self, *, orderly: bool = True) -> None:
        if orderly:
            self._supervisor.dispatch(Closed())
        self._supervisor.close()
        self.launcher.close(patience_s=0.5 if orderly else 0.0)

    @override
    def task_of(self, name: str, checkpoint: int | None) -> HostTask:
        return self._tasks[name]

    @override
    def payload(self, send: Send) -> PayloadLike:
        assert self._payload_of is not None, send
        return self._payload_of(send.to)

    @override
    def note(self, effect: Any) -> None:
        match effect:
            case Answered(name=name, message=message):
                self._answers[name] = message, self._supervisor.payload
            case Starting():
                hosts = counted(effect.hosts, *self.launcher.kind)
                self._on_phase(starting(hosts, ready=effect.ready, compiled=effect.compiled))
            case Compiling(functions=functions):
                self._on_phase(compiling(functions))
            case HostLost(hosts=hosts, reason=reason, traceback=traceback):
                raise HostError(hosts, reason, traceback)
            case _:
                raise AssertionError(effect)
