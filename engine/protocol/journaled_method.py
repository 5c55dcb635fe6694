"""A method at work: what it asks for, what it was told, and how it is told again what a journal holds.

It must not know who does what is asked for: shards and replicas, or a function in one process.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import TypeAlias

import msgspec

from partita.engine.protocol.commands import (
    POINT,
    Evaluate,
    Iterated,
    Outcome,
    Request,
    Restore,
    Scalars,
    Snapshot,
    Steps,
    writes,
)

JournalEntry: TypeAlias = tuple[int, Scalars]
"""Of the journal: a request's digest, and what it gave."""


class JournalMismatch(ValueError):
    """A journal that this method did not write. One sentence, and what to do."""


class JournaledMethod:
    """A method at work, and what it has asked that may have to be done again.

    Attributes:
        asks: what it asks for now; None when it has ended.
        answered: how many requests it was told the scalars of.
    """

    asks: Request | None

    def __init__(self, steps: Steps, journal: Sequence[JournalEntry] = ()) -> None:
        """Started, and told what the journal holds.

        Raises:
            JournalMismatch: the method asks for something else than was recorded.
            ValueError: it asks for what nobody can do, or does not say how it ended.
        """
        self._steps = steps
        self.answered = 0
        self._requests: deque[Request] = deque()  # the last ones of those that are answered
        self.outcome: Outcome | None = None
        self.iterated: Iterated | None = None
        self._listen(None)
        for n, (digest, scalars) in enumerate(journal):
            if self.asks is None or digest_of(self.asks) != digest:
                raise JournalMismatch(
                    f"the journal holds {len(journal)} answers, and the method asks for something else after "
                    f"{n} of them; resume with the method and settings that wrote it (limits may only grow), "
                    "or give another folder"
                )
            self.tell(scalars)

    def tell(self, scalars: Scalars) -> list[Iterated]:
        """What it asked for has given this. Returns the iterations that it has thereby done.

        Raises:
            ValueError: it asks for what nobody can do, or does not say how it ended.
        """
        assert self.asks is not None
        self._requests.append(self.asks)
        self.answered += 1
        return self._listen(scalars)

    def since(self, position: int) -> list[Request]:
        """The requests from this number on that are answered. None before it was forgotten."""
        first = self.answered - len(self._requests)
        assert first <= position <= self.answered, (first, position, self.answered)
        return [*islice(self._requests, position - first, None)]

    def forget(self, position: int) -> None:
        """The requests below this number will not be done again: a checkpoint holds what they led to."""
        while self._requests and self.answered - len(self._requests) < position:
            self._requests.popleft()

    def _listen(self, scalars: Scalars | None) -> list[Iterated]:
        done: list[Iterated] = []
        self.asks = None
        try:
            said = next(self._steps) if scalars is None else self._steps.send(scalars)
            while isinstance(said, Iterated):
                self.iterated = said
                done.append(said)
                said = self._steps.send(())
            self.asks = _checked(said)
        except StopIteration as ended:
            self.outcome = _ended(ended.value)
        return done


def digest_of(request: Request) -> int:
    """A number by which a request is known again (CRC-32 of its bytes)."""
    return zlib.crc32(msgspec.msgpack.encode(request))


def _checked(request: object) -> Request:
    """A request, if that is what a method has yielded. Raises ValueError."""
    known = isinstance(request, tuple) and all(hasattr(one, "__struct_fields__") for one in request)
    if not known:
        raise ValueError(f"a method yielded {request!r}; it must yield a tuple of operations, or Iterated")
    operations: Request = request  # type: ignore[assignment]
    if sum(isinstance(one, Evaluate) for one in operations) > 1:
        raise ValueError("a method asked for two evaluations at once; give each a request of its own")
    evaluates = next((n for n, one in enumerate(operations) if isinstance(one, Evaluate)), len(operations))
    if any(POINT in writes(one) for one in operations[evaluates:]):
        raise ValueError(
            f"a method changes {POINT!r} where it has just evaluated, and others may still compute there; "
            "change it in the next request"
        )
    if any(isinstance(one, Snapshot | Restore) for one in operations):
        raise ValueError("a method asked for a checkpoint; those are the coordinator's own")
    return operations


def _ended(with_what: object) -> Outcome:
    """How a method ended. Raises ValueError."""
    if not isinstance(with_what, Outcome):
        raise ValueError(
            f"a method ended with {with_what!r}; it must return an Outcome that says how it ended"
        )
    return with_what
