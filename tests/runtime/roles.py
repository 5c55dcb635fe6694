"""A machine and its body without a host: events in, messages out through the context."""

from __future__ import annotations

from typing import Any

from partita.engine.protocol.events import Refuse, Send
from partita.engine.protocol.host import RoleMachine
from partita.engine.runtime.task import Body, HostContext


class PlayedRole:
    """Carries out the effects of events, one after the other."""

    def __init__(self, role: tuple[RoleMachine, Body], context: HostContext) -> None:
        self.machine, self.body = role
        self._context = context

    def receive(self, event: Any, now: float = 0.0) -> None:
        events = [event]
        for one in events:  # grows
            for effect in self.machine.receive(one, now):
                match effect:
                    case Send(to=to, message=message, payload=span):
                        self._context.send(to, message, None if span is None else self.body.payload(effect))
                    case Refuse(sender=sender, reason=reason):
                        self._context.refuse(sender, reason)
                    case _:
                        result = self.body.carry_out(effect, now)
                        events += [] if result is None else [result]

    def poll(self, now: float = 0.0) -> None:
        for result in self.body.poll(now):
            self.receive(result, now)

    def close(self) -> None:
        self.body.close()
