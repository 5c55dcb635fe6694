"""Hosts that play steps of one plan after another, and tell how long their processors were at work.

The parts are those of sessions, with their real players and mailboxes. What a process works besides kernels
is what messages cost it: the thread that owns the mailbox, and those of the sockets, which encrypt.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from partita.engine.protocol.events import Received
from partita.engine.protocol.messages import Heartbeat, Load, Message, Played, Ready
from partita.engine.protocol.names import COORDINATOR
from partita.engine.runtime.session import SessionRole, SessionTask
from partita.engine.runtime.task import HostContext, Role
from partita.engine.transport.payload import PayloadLike
from partita.partitioner.plan import Plan

_SWEPT_BYTES: Final = 32 << 20
"""As much as a network of 8 million parameters; the largest caches of today's cores hold about as much."""


@dataclass(frozen=True)
class StepTimingTask:
    """A host that plays a machine's part of several plans, one after another; a `Load` begins the next.

    Args:
        machine: whose part.
        plans: the way up of each is played.
        cold: whether each kernel reads and writes more than caches hold besides; it counts as part of it.
    """

    machine: int
    plans: tuple[Plan, ...]
    cold: bool = False

    @property
    def title(self) -> str:
        """What it is about."""
        return "a tally"

    @property
    def threads(self) -> int:
        """See `HostTask`."""
        return 1

    @property
    def rank(self) -> tuple[int, int]:
        """See `HostTask`."""
        return self.machine, len(self.plans[0].cluster)

    def session(self, number: int) -> SessionTask:
        """The part of a plan."""
        return SessionTask(self.plans[number], self.machine, train=False)

    def role(self, link: HostContext) -> Role:
        """See `HostTask`."""
        return _StepTimingRole(self, link)


class _StepTimingRole(Role):
    """Adds to each answer the processor time of the process since the one before."""

    def __init__(self, task: StepTimingTask, link: HostContext) -> None:
        self._task, self._link = task, link
        self._role: SessionRole | None = None
        self._number = -1
        self._spent_s = 0.0
        self._swept = np.zeros(_SWEPT_BYTES // 4 if task.cold else 0, np.float32)

    def _sweep(self) -> None:
        np.negative(self._swept, out=self._swept)

    def receive(self, event: Received, now: float) -> None:
        """Begins the next plan, or leaves it to the part."""
        match event.message:
            case Load() if event.sender == COORDINATOR:
                self.close()
                self._number += 1
                self._role = SessionRole(
                    self._task.session(self._number),
                    replace(self._link, send=self._send),
                    beside=self._sweep if self._task.cold else None,
                )
                self._link.send(COORDINATOR, Ready(), None)
            case Heartbeat():
                return
            case _ if self._role is not None:
                self._role.receive(event, now)

    def wakened(self, now: float) -> None:
        """See `Role`."""
        if self._role is not None:
            self._role.wakened(now)

    def _send(self, to: str, message: Message, payload: PayloadLike) -> None:
        if isinstance(message, Played):
            spent = time.process_time()
            payload = [np.array([spent - self._spent_s])]
            self._spent_s = spent
        self._link.send(to, message, payload)

    def close(self) -> None:
        """Ends the part that is being played."""
        if self._role is not None:
            self._role.close()
            self._role = None
