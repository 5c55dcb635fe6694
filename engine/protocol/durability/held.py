"""Replies that promise records, held until the keepers have these.

A reply that changes nothing for its receiver if the shard dies is not held: what a part has fetched may hold
pushes that are lost, and whoever sent them sends them again.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any, Final

from partita.engine.protocol import batch_messages as bm
from partita.engine.protocol import messages as m
from partita.engine.protocol.events import Send


def _promise(effect: Any) -> Hashable:
    """Returns what identifies the promise in an effect; None where there is none."""
    if isinstance(effect, Send):
        match effect.message:
            case m.PushAck(incarnation=incarnation, sequence=sequence, fragment=fragment):
                return effect.to, fragment, incarnation, sequence
            case bm.CommandResult(number=number):
                return effect.to, number
    return None


class HeldReplies:
    """The replies of one process of a shard. A request that is repeated meanwhile is answered once.

    Attributes:
        kept: the keepers have the records up to this number.
    """

    def __init__(self, kept: int) -> None:
        self.kept = kept
        self._held: Final[dict[Hashable, tuple[int, Any]]] = {}

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, effects: Iterable[Any], number: int) -> list[Any]:
        """Holds the replies among the effects that promise the records up to a number; returns the others."""
        if number <= self.kept:
            return [*effects]
        at_once = []
        for effect in effects:
            promise = _promise(effect)
            if promise is None:
                at_once.append(effect)
            else:
                self._held.setdefault(promise, (number, effect))
        return at_once

    def delay(self, effect: Any, key: Hashable, number: int) -> None:
        """Holds an effect until the records up to a number are kept; the newest one of each key."""
        self._held[key] = number, effect

    def release(self, kept: int) -> list[Any]:
        """Notes what the keepers have. Returns the effects that waited for it, in their order."""
        if kept <= self.kept:
            return []
        self.kept = kept
        ready = [key for key, (number, _) in self._held.items() if number <= kept]
        return [self._held.pop(key)[1] for key in ready]

    def clear(self) -> None:
        """Drops every reply: the shard was replaced."""
        self._held.clear()

    def validate(self) -> None:
        """Checks that nothing is held without a reason. Raises AssertionError."""
        assert all(number > self.kept for number, _ in self._held.values()), (self.kept, self._held)
