"""The units of work in the shards' numbers when a run goes on: asked of all shards before any work is leased.

What all shards hold is done. What only some hold is leased, and parts leave it out where it is held. So every
unit counts once, wherever the coordinator before this one was killed. This module must not know leases.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from partita.engine.protocol.checkpoint_messages import AskUnits, UnitsHeld
from partita.engine.protocol.events import Send
from partita.engine.protocol.message_base import MOST
from partita.engine.protocol.ranges import Ranges


class UnitsOfShards:
    """The answers of the shards.

    Attributes:
        all: the units that all shards hold which have answered.
        some: those that some of them hold.
    """

    def __init__(self, shards: Iterable[str], *, retry_s: float) -> None:
        """Has asked nobody; without `shards` nothing is asked. `retry_s`: until a question is repeated."""
        self.all = Ranges([(0, MOST)])
        self.some: Final = Ranges()
        self._silent: Final = set(shards)
        self._retry_s: Final = retry_s
        self._asked_at = float("-inf")

    @property
    def known(self) -> bool:
        """Returns whether all shards have answered."""
        return not self._silent

    def ask(self, now: float) -> list[Send]:
        """Asks the shards that have not answered, if that is due."""
        if self.known or now - self._asked_at < self._retry_s:
            return []
        self._asked_at = now
        return [Send(name, AskUnits()) for name in sorted(self._silent)]

    def take(self, shard: str, answer: UnitsHeld) -> bool:
        """Notes an answer. Returns whether it was the last one missing."""
        if shard not in self._silent:
            return False
        self._silent.discard(shard)
        self.all = Ranges(self.all.common(answer.all))
        for one in answer.some:
            self.some.cover(*one)
        return self.known

    def sentence(self, more: int) -> str:
        """Words what the shards hold: `more` units that all of them have, and those that some have."""
        partly = self.some.size - sum(stop - start for start, stop in self.some.common(self.all))
        also = f", and parts of {partly}, which are done for the other shards" if partly else ""
        return f"the shards hold {more} steps more than the checkpoint counts{also}" if more or partly else ""
