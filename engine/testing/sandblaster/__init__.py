"""Schedules of Sandblaster: I4 to I10 and I13.

`scenario` draws what a seed adds to its environment: a `function` and a method, which may be a
`random_method`. `reference` plays the method in one process, `invariants` checks a run after every event and
`shard_invariants` each shard. `part` and `shard` carry out the machines'
effects, and in `schedule` one coordinator follows another.
"""

from partita.engine.testing.invariants import Outcome
from partita.engine.testing.sandblaster import shard
from partita.engine.testing.sandblaster.part import build_part
from partita.engine.testing.sandblaster.scenario import Scenario
from partita.engine.testing.sandblaster.schedule import Machines, SandblasterSchedule
from partita.engine.testing.world import World

__all__ = ["Machines", "play"]


def play(
    seed: int,
    machines: Machines | None = None,
    *,
    scenario: Scenario | None = None,
    keep_all: bool = False,
) -> Outcome:
    """Plays the schedule of a seed; the same seed gives the same outcome and trace, in any process.

    Args:
        seed: any integer.
        machines: the machines to play; the real ones by default.
        scenario: played instead of the seed's own.
        keep_all: whether the trace is the whole history, not the last events.
    """
    world, machines = World(seed, keep_all=keep_all), machines or Machines()
    schedule = SandblasterSchedule(
        world,
        machines,
        scenario,
        part=build_part,
        shard=shard.role,
    )
    return schedule.play(seed)
