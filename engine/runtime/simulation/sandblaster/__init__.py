"""Schedules of Sandblaster: I4 to I10 and I13.

`scenario` draws what a seed adds to its surroundings: a `function` and a method, which may be a `walk`.
`reference` plays it in one process, `ledger` judges a run after every event and `shard_ledger` each shard;
`setting` and `disk` are what the hosts share, `vectors` what a shard does with its own; `coordinator`, `part`
and `shard` interpret the machines' effects, and `schedule` lets one coordinator follow another.
"""

from partita.engine.runtime.simulation.sandblaster.schedule import play
from partita.engine.runtime.simulation.sandblaster.setting import Machines

__all__ = ["Machines", "play"]
