"""Plays the real protocol machines on a virtual clock, over a seeded network with faults.

`scenario` draws what a seed stands for, `world` is time and processes, `accidents` what happens to them;
`hosts`, `part`, `shard` and `schedule` interpret the machines' effects, and `ledger` judges after every event
(I1 to I5, I8, I13). `python -m partita.engine.runtime.simulation --schedules 10000` plays many.
"""

from partita.engine.runtime.simulation.hosts import Machines
from partita.engine.runtime.simulation.schedule import Outcome, play

__all__ = ["Machines", "Outcome", "play"]
