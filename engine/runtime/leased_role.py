"""What the roles of all shards have in common: what waits for a lease, files, and the passing of time."""

from __future__ import annotations

import time
from abc import abstractmethod

from partita.engine.protocol.events import NotPersisted, Persisted, Received, Tick
from partita.engine.protocol.lease import LeasedShard
from partita.engine.protocol.messages import Message
from partita.engine.runtime.checkpoint_writer import CheckpointWriter
from partita.engine.runtime.task import HostContext, Role
from partita.engine.transport.payload import PayloadLike


class LeasedRole(Role):
    """A role around a machine that works under a lease."""

    _link: HostContext

    def __init__(
        self, lease: LeasedShard, writer: CheckpointWriter, *, waiting: tuple[type[Message], ...]
    ) -> None:
        """Without a lease, yet.

        Args:
            lease: the machine.
            writer: of its files.
            waiting: what is kept while a lease is on its way. The machine would drop it, and a start (or a
                pause of the coordinator) would take a second or more longer, until it is said again. Only
                the last of each kind from each sender is kept, so few can wait.
        """
        self._lease, self._writer, self._waiting = lease, writer, waiting
        self._early: dict[tuple[str, type[Message]], Received] = {}

    def receive(self, event: Received, now: float) -> None:
        """Everything is the machine's business; but what comes while a lease is on its way waits for it."""
        if isinstance(event.message, self._waiting) and not self._lease.holds_lease(now):
            self._early[event.sender, type(event.message)] = event
            return
        self._tell(event, now)
        if self._early and self._lease.holds_lease(now):
            early, self._early = self._early, {}
            for asked in early.values():
                self._tell(asked, now)

    def wakened(self, now: float) -> None:
        """A file is on disk, or could not be written."""
        for persisted in self._writer.finished():
            self._tell(persisted, now)

    def tick(self, now: float) -> None:
        """The machine asks for the next lease."""
        self._tell(Tick(), now)

    def close(self) -> None:
        """Waits for a file that is being written."""
        self._writer.close()

    @abstractmethod
    def _tell(self, event: Received | Tick | Persisted | NotPersisted, now: float) -> None:
        """Tells the machine, and carries out what follows."""

    def _say(self, to: str, message: Message, payload: PayloadLike, *, now: float, began: float) -> None:
        """Sends what the machine wants said, if the lease has not ended since: since `now`, when the machine
        was told of the event, which was `began` by `time.monotonic()`.
        """
        if self._lease.may_send(message, now + time.monotonic() - began):
            self._link.send(to, message, payload)

    def _replaced(self, epoch: int) -> RuntimeError:
        return RuntimeError(f"another process is {self._lease.name} now, in epoch {epoch}")
