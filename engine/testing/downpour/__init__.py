"""Schedules of drivers with shards whose replicas work alone: I1 to I5, I8, I13 to I16, C1, E1 to E4, L1.

`schedule` draws what a seed adds to its environment, `part` and `shard` build the tasks of hosts, `model` is
the reference that every event is checked against, `lineage` what it knows of one life of a shard, `work` that
of leased units, and `resuming` recovers what a run goes on from.
"""

from collections.abc import Iterable

from partita.engine.drivers.driver import Driver
from partita.engine.testing.downpour import shard
from partita.engine.testing.downpour.part import build_part
from partita.engine.testing.downpour.schedule import DownpourSchedule
from partita.engine.testing.invariants import Outcome

__all__ = ["play_downpour"]


def play_downpour(
    driver: Driver | None,
    seed: int,
    *,
    machines: Iterable[type] = (),
    durability: str = "checkpoint",
    hostile: bool = False,
    keep_all: bool = False,
) -> Outcome:
    """Plays the schedule of a seed, see `partita.engine.testing.play`; None: it draws the settings, too.

    `durability`: "checkpoint", "log" or "replicated"; `hostile`: some members send what no correct one does.
    """
    schedule = DownpourSchedule(
        driver,
        seed,
        machines,
        part=build_part,
        shard=shard.role,
        durability=durability,
        hostile=hostile,
        keep_all=keep_all,
    )
    return schedule.play(seed)
