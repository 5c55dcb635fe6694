"""Records of a shard: the requests that have changed its state, numbered from 1 over all its processes."""

from __future__ import annotations

from dataclasses import dataclass

from partita.engine.protocol.events import Received


@dataclass(frozen=True, slots=True)
class Record:
    """A request, with its payload, that a shard has carried out.

    Replayed in the order of their numbers by the same policy over the same state, records give the same bits.

    Args:
        number: of the record; the shard's version after it.
        request: the message, its sender and the sender's incarnation.
    """

    number: int
    request: Received


@dataclass(frozen=True, slots=True)
class Keep:
    """Effect: pass a record to the keepers. `Kept` reports that they have it. The effects that carry it out
    follow, so the payload is read by both.
    """

    record: Record


@dataclass(frozen=True, slots=True)
class Kept:
    """Event: every keeper has the records up to this number."""

    number: int
