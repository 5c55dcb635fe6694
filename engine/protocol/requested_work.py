"""Work that the coordinator requests: a step is a `Play`, in the order of arrival, and `Played` its answer.

Parameters and questions for the clock need no step: the body handles them at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any, ClassVar, Final

from partita.engine.protocol.actions import Action
from partita.engine.protocol.events import Received, Send, Span
from partita.engine.protocol.leased_work import HasSteps
from partita.engine.protocol.names import COORDINATOR
from partita.engine.protocol.part import Work
from partita.engine.protocol.program_effects import Deliver, StepDone
from partita.engine.protocol.session_messages import Load, Ping, Play, Played

COLLECTED: Final = Span("collected", 0, 0)
"""The payload of an answer."""


@dataclass(frozen=True, slots=True)
class RunRequest:
    """Effect: play a step over the inputs in `payload`, or the last ones; `RequestDone` reports its end."""

    play: Play
    payload: object

    @property
    def number(self) -> int:
        """The number of the step."""
        return self.play.step


@dataclass(frozen=True, slots=True)
class RequestDone(StepDone):
    """Event, answers `RunRequest`: the body has the payload of this answer."""

    answer: Played | None = None


class RequestedWork(Work):
    """The requests that a part has received and not begun."""

    takes: ClassVar[tuple[type, ...]] = (Play, Load, Ping)

    def __init__(self) -> None:
        self._waiting: Final[deque[Received]] = deque()

    @property
    def me(self) -> HasSteps:
        """The part, whose steps are the requests."""
        return self

    def steps(self) -> Iterator[int]:
        """Yields the number of each request."""
        return count()

    def receive(self, event: Any, now: float) -> Iterable[Any]:
        """Keeps a request until its turn."""
        if not isinstance(event, Received):
            return ()
        if not isinstance(event.message, Play):
            return (Deliver(event),)
        self._waiting.append(event)
        return ()

    def may_begin(self, action: Action) -> bool:
        """Returns whether a step is requested."""
        return bool(self._waiting)

    def begin(self, action: Action, now: float) -> tuple[RunRequest]:
        """Has the body play the request that came first."""
        event = self._waiting.popleft()
        assert isinstance(event.message, Play), event
        self.computing = event.message.step
        return (RunRequest(event.message, event.payload),)

    def done(self, done: StepDone, now: float) -> tuple[Send]:
        """Sends the coordinator what the request has led to."""
        assert isinstance(done, RequestDone) and done.answer is not None, done
        return (Send(COORDINATOR, done.answer, COLLECTED),)
