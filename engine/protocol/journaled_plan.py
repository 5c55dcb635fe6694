"""A driver's program, or a batch method, that runs step by step, and is taken to where its journal ends.

It must not know who executes the actions: shards and replicas, or a function in one process.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Any, TypeAlias

import msgspec

from partita.engine.protocol.actions import (
    Calls,
    Checkpoint,
    CoordinatorAction,
    Decision,
    Plan,
    Validate,
    Work,
)
from partita.engine.protocol.commands import (
    POINT,
    Evaluate,
    Iterated,
    Outcome,
    Request,
    Restore,
    Scalars,
    ShowPoint,
    Snapshot,
    writes,
)

RecordedAnswer: TypeAlias = tuple[int, Scalars]
"""A request's digest, and the scalars that it gave."""


class JournalMismatch(ValueError):
    """A journal that this method did not write. One sentence, and what to do."""


class JournaledPlan:
    """A driver's `coordinator(run)` at work, and its latest requests, which may have to be repeated.

    Attributes:
        asks: the action under way; None when the program has ended.
        answered: how many requests have their scalars.
        outcome: how a program of requests ended; None while it has not.
        iterated: the last iteration.
    """

    asks: CoordinatorAction | None

    def __init__(self, plan: Plan, journal: Sequence[RecordedAnswer] = ()) -> None:
        """Starts the program, and gives it what the journal holds.

        Raises:
            JournalMismatch: the program asks for something else than was recorded.
            ValueError: an action is invalid, or a program of requests does not return an `Outcome`.
        """
        self._plan = plan
        self.answered = 0
        self._requests: deque[Request] = deque()  # the last ones of those that are answered
        self.outcome: Outcome | None = None
        self.iterated: Iterated | None = None
        self._works = False  # the last action was no request
        self._send(None)
        for n, (digest, scalars) in enumerate(journal):
            self._pass_validations()
            if not isinstance(self.asks, tuple) or digest_of(self.asks) != digest:
                raise JournalMismatch(
                    f"the journal holds {len(journal)} answers, and the method asks for something else after "
                    f"{n} of them; resume with the method and settings that wrote it (limits may only grow), "
                    "or give another folder"
                )
            self.advance(scalars)

    def _pass_validations(self) -> None:
        """Goes on behind validations that the journal shows to be over."""
        while isinstance(self.asks, Validate):
            self._send(Decision())

    def advance(self, result: Any) -> list[Iterated]:
        """Gives the program the result of its action. Returns the iterations that it has thereby done.

        Raises:
            ValueError: an action is invalid, or a program of requests does not return an `Outcome`.
        """
        assert self.asks is not None
        if isinstance(self.asks, tuple):
            self._requests.append(self.asks)
            self.answered += 1
        return self._send(result)

    def since(self, position: int) -> list[Request]:
        """Returns the answered requests from this number on, which must not be forgotten."""
        first = self.answered - len(self._requests)
        assert first <= position <= self.answered, (first, position, self.answered)
        return [*islice(self._requests, position - first, None)]

    def forget(self, position: int) -> None:
        """Drops the requests below this number: a checkpoint contains what they led to."""
        while self._requests and self.answered - len(self._requests) < position:
            self._requests.popleft()

    def _send(self, result: Any) -> list[Iterated]:
        done: list[Iterated] = []
        self.asks = None
        try:
            yielded = self._plan.send(result)
            while isinstance(yielded, Iterated):
                self.iterated = yielded
                done.append(yielded)
                yielded = self._plan.send(())
            if isinstance(yielded, Validate):
                self.asks = yielded
                return done
            self._works = isinstance(yielded, Work | Checkpoint | Calls)
            self.asks = yielded if self._works else _checked(yielded)
        except StopIteration as ended:
            if not isinstance(ended.value, Outcome) and not self._works:
                raise ValueError(
                    f"a method ended with {ended.value!r}; it must return an Outcome that says how it ended"
                ) from None
            self.outcome = ended.value
        return done


def digest_of(request: Request) -> int:
    """Returns a number by which a request is recognised (CRC-32 of its bytes)."""
    return zlib.crc32(msgspec.msgpack.encode(request))


def _checked(request: object) -> Request:
    """Returns the request if that is what a method has yielded. Raises ValueError."""
    if not isinstance(request, tuple):
        raise ValueError(f"a method yielded {request!r}; it must yield a tuple of operations, or Iterated")
    evaluates = False
    for operation in request:
        kind = type(operation)
        if not hasattr(kind, "__struct_fields__"):
            raise ValueError(
                f"a method yielded {request!r}; it must yield a tuple of operations, or Iterated"
            )
        if kind is Evaluate:
            if evaluates:
                raise ValueError("a method asked for two evaluations at once; give each a request of its own")
            evaluates = True
        elif kind in (Snapshot, Restore, ShowPoint):
            raise ValueError("a method asked for a checkpoint; those are the coordinator's own")
        if evaluates and POINT in writes(operation):
            raise ValueError(
                f"a method changes {POINT!r} where it has just evaluated, and others may still compute "
                "there; change it in the next request"
            )
    return request
