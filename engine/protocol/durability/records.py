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


@dataclass(frozen=True, slots=True)
class BeginSegment:
    """Effect: a checkpoint is being written; keep the records from this number on apart from those before."""

    first: int


@dataclass(frozen=True, slots=True)
class RemoveRecords:
    """Effect: a committed checkpoint holds the records up to this number; nobody needs to keep them."""

    through: int


@dataclass(frozen=True, slots=True)
class LogNote:
    """Event: a sentence for the user about the log ("": none), and whether a checkpoint would help it."""

    text: str
    wants_checkpoint: bool = False
