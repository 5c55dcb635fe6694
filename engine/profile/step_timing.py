"""Hosts that play steps of one plan after another and report the processor time of their processes.

The parts are those of sessions, with their real players and mailboxes. The processor time outside kernels is
the cost of messages: the communication thread, and the threads of the sockets, which encrypt.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
from typing_extensions import override

from partita.engine.drivers.session import Steps
from partita.engine.protocol.events import Send
from partita.engine.protocol.names import COORDINATOR
from partita.engine.protocol.part import Part
from partita.engine.protocol.program_effects import Deliver
from partita.engine.protocol.requested_work import RequestedWork
from partita.engine.protocol.session_messages import Load, Loaded
from partita.engine.runtime.session import SessionBody, SessionRunner, SessionTask
from partita.engine.runtime.task import Body, HostContext
from partita.engine.transport.payload import PayloadLike
from partita.partitioner.plan import Plan

STEPS_OF_PLAN: Final = 1 << 20
"""Plan `k` begins at step `k * STEPS_OF_PLAN`: a late message of the plan before is known by its step."""

_SWEPT_BYTES: Final = 32 << 20
"""Bytes that a cold step sweeps after each kernel: as many as the largest caches of today's cores hold."""


@dataclass(frozen=True)
class StepTimingTask:
    """Task of a host that plays a machine's part of several plans; a `Load` begins the next plan.

    Args:
        machine: index of the part.
        plans: plans whose forward pass is played.
        cold: whether each kernel also sweeps more memory than caches hold, which counts as part of it.
    """

    machine: int
    plans: tuple[Plan, ...]
    cold: bool = False
    threads: ClassVar = 1

    @property
    def rank(self) -> tuple[int, int]:
        """See the protocol `HostTask`."""
        return self.machine, len(self.plans[0].cluster)

    def session(self, number: int) -> SessionTask:
        """Returns the session's task for a plan."""
        return Steps().tasks(self.plans[number])[self.machine]

    def role(self, link: HostContext) -> tuple[Part, Body]:
        """See the protocol `HostTask`."""
        return Part(Steps().replica, RequestedWork()), _StepTimingBody(self, link)


class _StepTimingBody(Body):
    """Adds to each answer the processor time of the process since the answer before."""

    def __init__(self, task: StepTimingTask, link: HostContext) -> None:
        self._task, self._link = task, link
        self._body: SessionBody | None = None
        self._number = -1
        self._spent_s = 0.0
        self._swept = np.zeros(_SWEPT_BYTES // 4 if task.cold else 0, np.float32)

    def _sweep(self) -> None:
        np.negative(self._swept, out=self._swept)

    @override
    def carry_out(self, effect: Any, now: float) -> Any:
        """Begins the next plan, or has the part carry out the effect."""
        if isinstance(effect, Deliver) and isinstance(effect.event.message, Load):
            self.close()
            self._number += 1
            after_each = self._sweep if self._task.cold else None
            runner = SessionRunner(
                self._task.session(self._number),
                self._link,
                first_step=self._number * STEPS_OF_PLAN,
                after_each=after_each,
            )
            self._body = SessionBody(self._link, runner)
            self._link.send(COORDINATOR, Loaded(), None)
            return None
        return None if self._body is None else self._body.carry_out(effect, now)

    @override
    def payload(self, send: Send) -> PayloadLike:
        before, self._spent_s = self._spent_s, time.process_time()
        return [np.array([self._spent_s - before])]

    @override
    def poll(self, now: float) -> Iterable[Any]:
        return () if self._body is None else self._body.poll(now)

    def close(self) -> None:
        """Ends the part that is being played."""
        if self._body is not None:
            self._body.close()
            self._body = None
