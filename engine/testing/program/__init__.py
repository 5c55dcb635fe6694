"""Schedules of drivers that are programs: views, work, exchanges and safe points.

`schedule` draws what a seed adds to its environment, `part` builds one over the numbers of a `regression`;
`model` checks every event against `lockstep`, which runs the driver's program in one process. `drawn` plays
`AllReduce` with the settings of a seed.
"""

from collections.abc import Iterable
from typing import Any

from partita.engine.testing.invariants import Outcome
from partita.engine.testing.program.part import build_part
from partita.engine.testing.program.schedule import ProgramSchedule

__all__ = ["play_programs"]


def play_programs(
    driver: Any,
    seed: int,
    *,
    machines: Iterable[type] = (),
    hostile: bool = False,
    keep_all: bool = False,
    agreed: tuple[str, ...] = (),
) -> Outcome:
    """Plays the programs of a driver in the schedule of a seed, see `partita.engine.testing.play`.

    `agreed` names vectors that all replicas share after the second safe point of a step, to the bit, also
    where they compute alone.
    """
    schedule = ProgramSchedule(
        driver, seed, machines, part=build_part, hostile=hostile, keep_all=keep_all, agreed=agreed
    )
    return schedule.play(seed)
