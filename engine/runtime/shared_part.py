"""A part whose machine two threads give events, one at a time: the host's, and the one that computes.

The thread that ends an assignment begins the next one, and its messages are sent meanwhile: no other thread
has to wake before it goes on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any, Final

from typing_extensions import override

from partita.engine.protocol.assigned_work import RunAssignment
from partita.engine.protocol.events import Refuse, Send
from partita.engine.protocol.host import RoleMachine
from partita.engine.protocol.part import LookForWaits, Part
from partita.engine.protocol.program_effects import StepDone
from partita.engine.protocol.watch_messages import PresentWait
from partita.engine.runtime.assignments import SinglePartRunner
from partita.engine.runtime.feed import Feed
from partita.engine.runtime.part_body import Arrays, PartBody
from partita.engine.runtime.task import HostContext
from partita.engine.runtime.validation import ValidationRunner
from partita.engine.runtime.watchdog import Watchdog


class _SharedMachine(RoleMachine):
    """The machine of the part, for two threads.

    An effect is carried out before another thread gives the next event; only messages may leave later.
    """

    def __init__(self, machine: Part, body: PartBody) -> None:
        self._machine, self._body = machine, body
        self._lock = threading.Lock()

    def receive(self, event: Any, now: float) -> list[Any]:
        return self.act(event, now)[0]

    def present_waits(self, now: float) -> tuple[PresentWait, ...]:
        return self._machine.present_waits(now)

    def act(self, event: Any, now: float) -> tuple[list[Any], bool]:
        """Carries out all effects but messages; returns these, and whether the next assignment has begun."""
        left: list[Any] = []
        goes_on = False
        with self._lock:
            for effect in self._machine.receive(event, now):
                if isinstance(effect, Send | Refuse | LookForWaits):
                    left.append(effect)
                    continue
                goes_on |= isinstance(effect, RunAssignment)
                self._body.carry_out(effect, now)
        return left, goes_on


class SharedBody(PartBody):
    """The hands of a part that waits for no other part.

    Attributes:
        machine: of the part.
    """

    def __init__(
        self,
        host: HostContext,
        runner: SinglePartRunner,
        arrays: Arrays,
        feed: Feed,
        machine: Part,
        *,
        watchdog: Watchdog,
        timeout_s: float,
        validation: ValidationRunner | None = None,
    ) -> None:
        """Takes over a part's machine, too; for the rest see `PartBody`."""
        settings: dict[str, Any] = {"watchdog": watchdog, "timeout_s": timeout_s, "validation": validation}
        super().__init__(host, runner, arrays, feed, **settings)
        self.machine: Final = _SharedMachine(machine, self)
        self._unsent: SimpleQueue[Send] = SimpleQueue()  # left to the thread of the mailbox

    @override
    def poll(self, now: float) -> Iterator[Any]:
        """Sends what the other thread has left to be sent, and goes on."""
        while not self._unsent.empty():
            self._send(self._unsent.get())
        yield from super().poll(now)

    def finish(self, done: StepDone) -> None:
        """Ends an assignment on the kernel thread, which sends only if it has no other assignment to run."""
        sends, goes_on = self.machine.act(done, time.monotonic())
        for effect in sends:
            if goes_on:
                self._unsent.put(effect)
            else:
                self._send(effect)
        if goes_on:
            self._host.wake()

    def _send(self, effect: Send) -> None:
        self._host.send(effect.to, effect.message, None if effect.payload is None else self.payload(effect))
