"""The machines of a run in virtual time: how fast they are, which are slow, and when one is dead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import exp

import numpy as np

from partita.engine.protocol.exchange.algorithm import Link


@dataclass(frozen=True)
class Hosts:
    """Machines whose times are assumed.

    Args:
        step_s: mean time of a minibatch.
        spread: standard deviation of the logarithm of that time, drawn anew for each minibatch.
        slow: factor of the times of each replica that is slower than the others.
        dead: for each replica that dies, when it does, and when it is back.
        n_bytes: that the parameters take on a link.
        link: between any two machines.
        server_chunk_bytes: where all values and pushes go through the link of one machine: bytes of the
            chunks in which they take turns there. None: each replica has a link of its own to the shards.
    """

    step_s: float = 0.1
    spread: float = 0.0
    slow: Mapping[int, float] = field(default_factory=dict)
    dead: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    n_bytes: int = 1_000_000
    link: Link = field(default=Link(0.5e-3, 8e-9))
    server_chunk_bytes: int | None = None

    @property
    def pass_s(self) -> float:
        """Seconds that all parameters take to another machine."""
        return self.link.seconds(self.n_bytes)

    def minibatch_s(self, rank: int, draw: np.random.Generator) -> float:
        """Draws the time of a minibatch of a replica that lives."""
        drawn = exp(self.spread * draw.normal() - self.spread**2 / 2)
        return self.step_s * drawn * self.slow.get(rank, 1.0)

    def ready_s(self, rank: int, now: float, seconds: float) -> float:
        """Returns the seconds until work is done; what a death falls into begins again afterwards."""
        gone, back = self.dead.get(rank, (0.0, 0.0))
        return back - now + seconds if gone <= now + seconds and now < back else seconds

    def is_dead(self, rank: int, now: float) -> bool:
        """Returns whether a replica is dead."""
        gone, back = self.dead.get(rank, (0.0, 0.0))
        return gone <= now < back
