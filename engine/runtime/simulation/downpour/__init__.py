"""Schedules of Downpour: I1 to I5, I8 and I13.

`scenario` draws what a seed adds to its surroundings, `setting` is what its hosts share, `part`, `shard` and
`schedule` interpret the machines' effects, and `ledger` judges after every event.
"""

from partita.engine.runtime.simulation.downpour.schedule import play
from partita.engine.runtime.simulation.downpour.setting import Machines

__all__ = ["Machines", "play"]
