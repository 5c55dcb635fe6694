"""Lives of a shard for the reference model: the pushes, units of work and values that each should hold."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from partita.engine.protocol.file_messages import PushRecord
from partita.engine.protocol.shard_effects import ApplyGradient

Push: TypeAlias = tuple[str, int, int]
"""A push to a given shard: (stream, incarnation, sequence), the stream as the shard names it."""


def push_of(effect: ApplyGradient) -> Push:
    """Returns the push that is applied."""
    return effect.stream, effect.incarnation, effect.sequence


@dataclass(slots=True)
class Lineage:
    """The values that one life of a shard should hold: inherited from a file, then one push at a time."""

    values: list[float]
    version: int = 0
    applied: set[Push] = field(default_factory=set)
    units: set[tuple[int, int]] = field(default_factory=set)  # (range, unit) whose gradients they hold
    gone: set[tuple[int, int]] = field(default_factory=set)  # likewise, in pushes that earlier runs have lost
    lost: set[Push] = field(default_factory=set)  # acknowledged ones that it was told of, and lacks
    newest: dict[str, int] = field(default_factory=dict)  # of each stream, the newest process it was told of
    own: list[tuple[int, Push]] = field(default_factory=list)  # (version, push) that this life has added
    parted_at: int = 0  # version with which its work began

    def copy(self) -> Lineage:
        """A copy for a file, or for another life, which has added nothing yet."""
        sets = set(self.applied), set(self.units), set(self.gone), set(self.lost)
        return Lineage(list(self.values), self.version, *sets, dict(self.newest))

    def learns(self, stream: str, record: PushRecord) -> None:
        """Counts the pushes of a process as lost that are acknowledged and not held.

        Those of a process before the newest one that it was told of are none: what the newest one did not
        know of when it began, it has done again.
        """
        if record.incarnation < self.newest.get(stream, -1):
            return
        self.newest[stream] = record.incarnation
        made = {(stream, record.incarnation, sequence) for sequence in range(record.pushes)}
        self.lost |= made - self.applied
