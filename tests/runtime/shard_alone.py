"""A shard's machine and body without a host: messages are kept, and results of threads are taken by hand."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import numpy as np

from partita.engine.files.access import HostFiles
from partita.engine.parameters import Vector
from partita.engine.protocol import Message
from partita.engine.protocol.events import Received, Refuse, Send, Tick
from partita.engine.runtime.shard import ShardTask
from partita.engine.runtime.task import HostContext
from partita.engine.transport import Counters, Payload, PayloadLike


class ShardAlone:
    """Interprets the effects of a shard as a host does, on a clock of its own.

    Attributes:
        sent: every message, to whom, and a copy of its numbers.
        refused: the reasons.
        woken: set when a thread has a result.
        now: the clock, in seconds.
    """

    def __init__(self, task: ShardTask, *, incarnation: int = 0, files: HostFiles | None = None) -> None:
        self.sent: list[tuple[str, Message, PayloadLike]] = []
        self.refused: list[str] = []
        self.woken = threading.Event()
        self.name = f"shard {task.shard}"
        own = HostContext(self.name, incarnation, self._send, self.woken.set, Counters(), self._refuse)
        host = own if files is None else replace(own, files=files)
        self.now = 0.0
        self.machine, self.body = task.role(host)
        self._dtype = task.precision

    def _send(self, to: str, message: Message, payload: PayloadLike) -> None:
        self.sent.append((to, message, payload))

    def _refuse(self, sender: str, reason: str) -> None:
        self.refused.append(reason)

    def feed(self, event: Any) -> None:
        """Gives the machine an event, and carries out the effects and those of their results."""
        events = [event]
        for event in events:  # grows
            for effect in self.machine.receive(event, self.now):
                match effect:
                    case Send(to=to, message=message, payload=span):
                        if self.machine.may_send(message, self.now):
                            numbers = None if span is None else self.body.payload(effect)
                            self._send(to, message, None if numbers is None else numbers.copy())
                    case Refuse(sender=sender, reason=reason):
                        self._refuse(sender, reason)
                    case _:
                        result = self.body.carry_out(effect, self.now)
                        events += [] if result is None else [result]
            self.machine.validate()

    def receive(self, sender: str, message: Message, payload: Vector | None = None) -> list[Message]:
        """Gives it a message, and returns the answers."""
        sent = len(self.sent)
        carried = None
        if payload is not None:
            carried = Payload([memoryview(np.asarray(payload, self._dtype)).cast("B")])
        self.feed(Received(sender, 0, message, carried))
        return [message for _, message, _ in self.sent[sent:]]

    def tick(self, now: float) -> None:
        self.now = now
        self.feed(Tick())

    def poll(self) -> None:
        """Takes the results of threads."""
        for result in self.body.poll(0.0):
            self.feed(result)
