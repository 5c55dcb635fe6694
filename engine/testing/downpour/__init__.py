"""Schedules of Downpour: I1 to I5, I8 and I13.

`schedule` draws what a seed adds to its environment, `part` and `shard` carry out the machines' effects, and
`model` is the reference that every event is checked against.
"""

from partita.engine.testing.downpour import shard
from partita.engine.testing.downpour.part import build_part
from partita.engine.testing.downpour.schedule import DownpourSchedule, Machines
from partita.engine.testing.invariants import Outcome

__all__ = ["Machines", "play"]


def play(seed: int, machines: Machines | None = None, *, keep_all: bool = False) -> Outcome:
    """Plays the schedule of a seed; the same seed gives the same outcome and trace, in any process.

    Args:
        seed: any integer.
        machines: the machines to play; the real ones by default.
        keep_all: whether the trace is the whole history, not the last events.
    """
    return DownpourSchedule(
        seed,
        machines or Machines(),
        part=build_part,
        shard=shard.role,
        keep_all=keep_all,
    ).play(seed)
