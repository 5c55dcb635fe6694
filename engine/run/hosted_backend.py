"""The backend of a session that plays each part on a host of its own."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from typing_extensions import override

from partita.engine.drivers.session import Steps
from partita.engine.kernels.kernel import Array
from partita.engine.launch.launcher import Launcher
from partita.engine.parameters.vector import Vector
from partita.engine.protocol import messages as m
from partita.engine.protocol.clocks import Offset, RoundTrip, offset_of
from partita.engine.protocol.coordinator import Coordinator
from partita.engine.protocol.coordinator_effects import (
    AbortRun,
    Opened,
    RunSettings,
    Starting,
    StopRequested,
    Timeouts,
)
from partita.engine.protocol.events import Send
from partita.engine.protocol.failure import HostError
from partita.engine.protocol.membership import HeartbeatPolicy
from partita.engine.protocol.names import Topology, machine_of, part_name
from partita.engine.protocol.request_mode import Answered, Call, Compiling, RequestMode
from partita.engine.protocol.session_messages import Load, Ping, Play
from partita.engine.protocol.views import Outline
from partita.engine.run.phases import OnPhase, compiling, silent, starting
from partita.engine.run.supervisor import Supervisor, Work
from partita.engine.runtime.session import PartStep
from partita.engine.runtime.task import HostTask
from partita.engine.runtime.versions import versions
from partita.engine.transport.payload import Payload, PayloadLike

PINGS: Final = 16
"""Round trips to each part by which its clock is compared with this thread's."""

_LEAST_SILENCE_S: Final = 4.0
_ONE_REPLICA: Final = Steps()


class HostedBackend(Work):
    """Plays each part on a host of its own, and exchanges messages with the hosts.

    Attributes:
        launcher: of the hosts.
    """

    def __init__(
        self,
        tasks: Sequence[HostTask],
        launcher: Launcher,
        *,
        timeout_s: float,
        silence_s: float | None = None,
        on_phase: OnPhase = silent,
        driver: Steps = _ONE_REPLICA,
    ) -> None:
        """Starts the hosts.

        Args:
            tasks: of the parts, replica by replica.
            launcher: starts the hosts; the backend closes it.
            timeout_s: seconds without a sign of life after which hosts that have not answered have failed.
            silence_s: seconds without any message after which a host has failed; `timeout_s` if not given.
            on_phase: called with the phases of the start.
            driver: its program for the coordinator.

        Raises:
            HostError: a host fails, dies, or is silent for too long.
        """
        self.launcher, self._on_phase = launcher, on_phase
        machines = len(tasks) // driver.replicas
        self._tasks: Final = {part_name(*divmod(n, machines)): task for n, task in enumerate(tasks)}
        dead_s = max(silence_s or timeout_s, _LEAST_SILENCE_S)
        heartbeats = HeartbeatPolicy(suspect_s=dead_s / 2, dead_s=dead_s)
        timeouts = Timeouts(
            heartbeats=heartbeats, start_s=math.inf, stall_s=timeout_s, checkpoint_every_s=None
        )
        settings, topology = (
            RunSettings(versions=versions(), timeouts=timeouts),
            Topology(driver.replicas, machines, 0),
        )
        self._mode: Final = self._mode_of(timeout_s)
        coordinator = Coordinator(driver.coordinator, self._outline, self._mode, topology, settings=settings)
        warn = on_phase if self._mode.restarts else silent
        self._supervisor = Supervisor(launcher, coordinator, self, warn=warn)
        self._over: HostError | None = None
        self._payload_of: Callable[[str], PayloadLike] | None = None
        self._answers: dict[str, tuple[Any, Payload | None]] = {}
        try:
            self._supervisor.dispatch(Opened())
            self._supervisor.run_until(lambda: self._mode.is_begun)
        except BaseException:
            self.close(orderly=False)
            raise

    @property
    def _outline(self) -> Outline:
        return Outline(epochs=0, examples=0, batch=0, replicas=1)

    def _mode_of(self, timeout_s: float) -> RequestMode:
        return RequestMode(timeout_s)

    def load(self, vector: Callable[[int, Vector | None], Vector]) -> None:
        """Replaces each part's parameters.

        Args:
            vector: returns a machine's parameters, written into the given vector, or as a new one.

        Raises:
            HostError: a part fails, dies, or does not answer in time.
        """
        self._ask(Load(), tuple(self._tasks), lambda name: vector(machine_of(name), None))

    def play(self, order: Play, inputs: Sequence[Sequence[Array]] | None) -> list[PartStep]:
        """Plays a step of all parts.

        Args:
            order: for each part.
            inputs: of each part; None: the last ones.

        Raises:
            HostError: a part fails, dies, or does not answer in time.
        """
        given = None if inputs is None else dict(zip(self._tasks, map(list, inputs), strict=True))
        payload_of = None if given is None else given.__getitem__
        return [PartStep(*answer) for answer in self._ask(order, tuple(self._tasks), payload_of)]

    def clocks(self) -> list[Offset]:
        """Measures the offset of each part's clock from this thread's (`perf_counter`), one after another.

        Raises:
            HostError: a part does not answer.
        """
        return [offset_of([self._round(name) for _ in range(PINGS)]) for name in self._tasks]

    def _round(self, name: str) -> RoundTrip:
        [(pong, _)] = self._ask(Ping(time.perf_counter()), (name,))
        return RoundTrip(pong.sent_s, pong.received_s, pong.replied_s, time.perf_counter())

    def _ask(
        self,
        request: m.Message,
        hosts: tuple[str, ...],
        payload_of: Callable[[str], PayloadLike] | None = None,
    ) -> list[tuple[Any, Payload | None]]:
        """Sends a request to hosts, and returns their answers in the same order.

        Args:
            request: the message.
            hosts: their names.
            payload_of: returns the payload for a host; None where there is none.
        """
        if self._over is not None:
            raise self._over
        self._payload_of, self._answers = payload_of, {}
        self._supervisor.dispatch(Call(request, hosts, has_payload=payload_of is not None))
        self._supervisor.run_until(lambda: self._mode.is_answered)
        return [self._answers[name] for name in hosts]

    def close(self, *, orderly: bool = True) -> None:
        """Ends the parts; at once, unless `orderly`."""
        self._over = self._over or HostError("", "the session is over; open another one")
        if orderly:
            self._supervisor.dispatch(StopRequested())
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
    def failure(self, abort: AbortRun) -> HostError:
        self._over = HostError(abort.host, abort.reason, abort.traceback)
        return self._over

    @override
    def note(self, effect: Any) -> None:
        match effect:
            case Answered(name=name, message=message):
                self._answers[name] = message, self._supervisor.payload
            case Starting():
                self._on_phase(starting(effect, self.launcher.kind))
            case Compiling(functions=functions):
                self._on_phase(compiling(functions))
            case _:
                raise AssertionError(effect)
