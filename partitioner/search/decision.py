"""What a strategy decides."""

from __future__ import annotations

from dataclasses import dataclass

from partita.partitioner.cuts import Cuts


@dataclass(frozen=True)
class Decision:
    """A cut for every layer, but for losses that lie where their scores do; and how a step is divided.

    Args:
        cuts: by layer; those by hand stand.
        micro_batches: into how many portions a minibatch is divided.
    """

    cuts: Cuts
    micro_batches: int = 1
