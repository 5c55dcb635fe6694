"""Settings of shards that merge pushes of several replicas into one update.

Source: Douillard and others, "Decoupled DiLoCo for resilient distributed pre-training", 2026 (arXiv
2604.21428): a minimum quorum, an adaptive grace window, and a mean weighted by tokens. How its window adapts
we do not know: that it is a part of a replica's time between two pushes, and ends when everybody is here, is
ours. (A part of the time between merges would be less and less where replicas come one by one.)
"""

from __future__ import annotations

from dataclasses import dataclass

from partita.engine.protocol.message_base import UnitRange


@dataclass(frozen=True)
class Merging:
    """A shard's rule for how many pushes it waits for. None of it makes a replica wait.

    Args:
        quorum: replicas whose pushes make an update; fewer where fewer are waited for, and at the end of a
            replica's work. None is waited for that was missing in the last two updates.
        grace: how long a shard with a quorum waits for the others: at most this part of the time that passes
            between two pushes of one replica.
        patience_s: seconds after which pushes without a quorum make an update all the same, since others may
            have ended; twice the time between two pushes, where that is more.
    """

    quorum: int = 1
    grace: float = 0.5
    patience_s: float = 2.0


@dataclass(frozen=True)
class UnitSizes:
    """The examples of units of work: of `batch` each, fewer in the last one of an epoch.

    Args:
        examples: of an epoch.
        batch: examples of a unit.
    """

    examples: int
    batch: int

    def of(self, units: tuple[UnitRange, ...]) -> int:
        """Returns the examples of units, in ranges `[start, stop)`."""
        return sum(self._before(stop) - self._before(start) for start, stop in units)

    def _before(self, unit: int) -> int:
        epochs, rest = divmod(unit, -(-self.examples // self.batch))
        return epochs * self.examples + min(rest * self.batch, self.examples)
