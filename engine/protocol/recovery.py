"""What must be done again when shards go back to a checkpoint: less than was done since.

The scalars of every request are known from the journal, so an operation is needed only if a vector that it
writes is read later, or is there in the end. In the middle of a line search that leaves no evaluation at all:
the next trial writes over what the last one found.
"""

from __future__ import annotations

from collections.abc import Sequence

from partita.engine.protocol.commands import Operation, Request, Swap, reads, writes


def still_needed(done: Sequence[Request], following: Request | None) -> list[Request]:
    """What of some requests brings the vectors to where they were after all of them.

    Args:
        done: since the checkpoint, in order.
        following: the one that will be done next; None: nothing follows, and every vector counts.

    Returns:
        Those of their operations that matter, in order; requests without any are left out.
    """
    overwritten: set[str] = set()  # before anybody reads them
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
    """What is overwritten from before an operation on, if this is from after it on."""
    if isinstance(operation, Swap):
        names = {operation.one: operation.other, operation.other: operation.one}
        return {names.get(name, name) for name in overwritten}
    return (overwritten | writes(operation)) - reads(operation)
