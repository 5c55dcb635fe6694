"""Schedules of Sandblaster: I4 to I10, I13 and E1 to E4.

`scenario` draws what a seed adds to its environment: a `function` and a method, which may be a
`random_method`. `reference` plays the method in one process, `invariants` checks a run after every event and
`shard_invariants` each shard. `part` and `shard` build tasks, and in `schedule` one coordinator follows
another.
"""

from collections.abc import Iterable

from partita.engine.drivers.sandblaster import Sandblaster
from partita.engine.testing.invariants import Outcome
from partita.engine.testing.sandblaster import shard
from partita.engine.testing.sandblaster.part import build_part
from partita.engine.testing.sandblaster.scenario import Scenario
from partita.engine.testing.sandblaster.schedule import SandblasterSchedule
from partita.engine.testing.world import World

__all__ = ["play_sandblaster"]


def play_sandblaster(
    driver: Sandblaster | None,
    seed: int,
    *,
    machines: Iterable[type] = (),
    scenario: Scenario | None = None,
    hostile: bool = False,
    durability: str = "checkpoint",
    keep_all: bool = False,
) -> Outcome:
    """Plays the schedule of a seed, see `partita.engine.testing.play`; None: it draws the settings, too.

    `scenario` is played instead of the seed's own. `durability`: "checkpoint", "log" or "replicated".
    `hostile`: some members send what no correct one does.
    """
    world = World(seed, keep_all=keep_all)
    schedule = SandblasterSchedule(
        driver,
        seed,
        world,
        machines,
        scenario,
        part=build_part,
        shard=shard.role,
        durability=durability,
        hostile=hostile,
    )
    return schedule.play(seed)
