"""Schedules of a driver's programs: views, work, exchanges and safe points.

`schedule` draws what a seed adds to its environment, `body` is a part's, over the numbers of a `regression`;
`model` checks every event against `lockstep`, which runs the driver's program in one process.
"""

from typing import Any

from partita.engine.testing.invariants import Outcome
from partita.engine.testing.program.schedule import Machines, ProgramSchedule

__all__ = ["Machines", "play"]


def play(driver: Any, seed: int, machines: Machines | None = None, *, keep_all: bool = False) -> Outcome:
    """Plays a driver in the schedule of a seed; the same seed gives the same outcome and trace.

    Args:
        driver: its programs.
        seed: any integer.
        machines: the machines to play; the real ones by default.
        keep_all: whether the trace is the whole history, not the last events.
    """
    return ProgramSchedule(driver, seed, machines or Machines(), keep_all=keep_all).play(seed)
