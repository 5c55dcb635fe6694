"""Places of the messages of compressors, in the vectors that a part exchanges in place of its numbers.

The messages of a round lie in one vector: for each range of the numbers those of all members, one after the
other, where they are collected; or one, where they are added up, or come from one member. All members know
their sizes beforehand, so a message of any other size is refused like any other piece.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from partita.engine.protocol.actions import ExchangeMessages
from partita.engine.protocol.events import Span
from partita.engine.protocol.exchange import Broadcast
from partita.engine.protocol.program_effects import DecodeMessages, EncodeMessage, SharedSpan


@dataclass(frozen=True, slots=True)
class MessagePlace:
    """The messages of one range of a vector.

    Args:
        one: the range.
        span: of the vector of messages.
        items: numbers in one message.
        members: that exchange them.
    """

    one: SharedSpan
    span: Span
    items: int
    members: int


def vector_of_messages(action: ExchangeMessages) -> str:
    """Returns the name of the vector that the messages of a round lie in."""
    return f"message.{action.turn}"


def is_gathered(action: ExchangeMessages) -> bool:
    """Returns whether messages are collected, and not added up."""
    return bool(action.compress.rounds[action.turn] == "gather")


def counts_members(action: ExchangeMessages) -> bool:
    """Returns whether there is a message of each member, one after the other."""
    return is_gathered(action) and not isinstance(action.by, Broadcast)


def places_of(
    action: ExchangeMessages,
    ranges: Sequence[SharedSpan],
    *,
    members: Callable[[SharedSpan], int],
    item_bytes: int,
) -> Iterator[MessagePlace]:
    """Yields the places of the messages of all ranges, one after the other."""
    at, vector = 0, vector_of_messages(action)
    for one in ranges:
        items = action.compress.items(one.tensors, item_bytes, step=action.step, turn=action.turn)
        n = members(one)
        stop = at + items * (n if counts_members(action) else 1)
        yield MessagePlace(one, Span(vector, at, stop), items, n)
        at = stop


def encoded(action: ExchangeMessages, place: MessagePlace, *, rank: int, view: int) -> EncodeMessage:
    """Returns the effect that writes a member's message."""
    one, span, step = place.one, place.span, action.step
    first = span.start + (rank * place.items if counts_members(action) else 0)
    source, target = Span(action.vector, one.start, one.stop), Span(span.vector, first, first + place.items)
    members = 1 if isinstance(action.by, Broadcast) else place.members
    return EncodeMessage(action.compress, source, target, span, one.tensors, step, action.turn, view, members)


def decoded(action: ExchangeMessages, place: MessagePlace) -> DecodeMessages:
    """Returns the effect that reads the messages."""
    one = place.one
    target = Span(action.vector, one.start, one.stop)
    return DecodeMessages(action.compress, place.span, target, one.tensors, action.step, action.turn)
