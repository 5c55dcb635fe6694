"""What a strategy decides."""

from __future__ import annotations

from dataclasses import dataclass, field

from partita.partitioner.assign.cuts import Cuts
from partita.partitioner.ir.program import Program


@dataclass(frozen=True)
class Decision:
    """A cut for every layer, but for losses that lie where their scores do; and how a step is divided.

    Args:
        cuts: by layer; those by hand stand.
        micro_batches: into how many portions a minibatch is divided.
        programs: of a step, where the strategy has made them to play them; one for each machine.
    """

    cuts: Cuts
    micro_batches: int = 1
    programs: tuple[Program, ...] = field(default=(), compare=False, repr=False)
