"""Finds the operations to repeat when shards go back to a checkpoint: fewer than were executed since.

The scalars of every request are known from the journal, so an operation is needed only if a vector that it
writes is read later, or exists in the end. In the middle of a line search no evaluation is needed: the next
trial overwrites the results of the last one.
"""

from __future__ import annotations

from collections.abc import Sequence

from partita.engine.protocol.commands import Operation, Request, Swap, reads, writes


def still_needed(done: Sequence[Request], following: Request | None) -> list[Request]:
    """Returns the operations that bring the vectors to their state after all requests.

    Args:
        done: since the checkpoint, in order.
        following: the next request; None: nothing follows, and every vector counts.

    Returns:
        The needed operations of each request, in order; requests without any are left out.
    """
    overwritten: set[str] = set()  # before they are read
    for operation in reversed(following or ()):
        overwritten = _before(operation, overwritten)
    needed: list[Request] = []
    for request in reversed(done):
        kept = []
        for operation in reversed(request):
            if writes(operation) <= overwritten:  # also where it writes nothing
                continue
            kept.append(operation)
            overwritten = _before(operation, overwritten)
        if kept:
            needed.append(tuple(reversed(kept)))
    return needed[::-1]


def _before(operation: Operation, overwritten: set[str]) -> set[str]:
    """Returns the vectors overwritten before they are read, from before the operation on."""
    if isinstance(operation, Swap):
        names = {operation.one: operation.other, operation.other: operation.one}
        return {names.get(name, name) for name in overwritten}
    return (overwritten | writes(operation)) - reads(operation)
