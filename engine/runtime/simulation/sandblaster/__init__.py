"""Schedules of Sandblaster: I4 to I10 and I13.

`scenario` draws what a seed adds to its surroundings: a `function` and a method, which may be a `walk`.
`reference` plays it in one process, `ledger` judges after every event, `setting` and `disk` are what the
hosts share, `vectors` what a shard does with its own, and `part`, `shard` and `schedule` interpret the
machines' effects.
"""

from partita.engine.runtime.simulation.sandblaster.schedule import play
from partita.engine.runtime.simulation.sandblaster.setting import Machines

__all__ = ["Machines", "play"]
