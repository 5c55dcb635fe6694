"""Hosts that play steps of one plan after another and report the processor time of their processes.

The parts are those of sessions, with their real players and mailboxes. The processor time outside kernels is
the cost of messages: the communication thread, and the threads of the sockets, which encrypt.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

import numpy as np
from typing_extensions import override

from partita.engine.protocol.events import Received
from partita.engine.protocol.host import PassOn, RoleMachine
from partita.engine.protocol.messages import Heartbeat, Load, Loaded, Message, Played
from partita.engine.protocol.names import COORDINATOR
from partita.engine.runtime.session import SessionBody, SessionTask
from partita.engine.runtime.task import Body, HostContext
from partita.engine.transport.payload import PayloadLike
from partita.partitioner.plan import Plan

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
        return SessionTask(self.plans[number], self.machine, train=False)

    def role(self, link: HostContext) -> tuple[RoleMachine, Body]:
        """See the protocol `HostTask`."""
        return PassOn(), _StepTimingBody(self, link)


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
    def carry_out(self, effect: Received, now: float) -> None:
        """Begins the next plan, or passes the message to the part."""
        match effect.message:
            case Load() if effect.sender == COORDINATOR:
                self.close()
                self._number += 1
                self._body = SessionBody(
                    self._task.session(self._number),
                    replace(self._link, send=self._send),
                    after_each=self._sweep if self._task.cold else None,
                )
                self._link.send(COORDINATOR, Loaded(), None)
            case Heartbeat():
                return
            case _ if self._body is not None:
                self._body.carry_out(effect, now)

    @override
    def poll(self, now: float) -> Iterable[Any]:
        return () if self._body is None else self._body.poll(now)

    def _send(self, to: str, message: Message, payload: PayloadLike) -> None:
        if isinstance(message, Played):
            spent = time.process_time()
            payload = [np.array([spent - self._spent_s])]
            self._spent_s = spent
        self._link.send(to, message, payload)

    def close(self) -> None:
        """Ends the part that is being played."""
        if self._body is not None:
            self._body.close()
            self._body = None
