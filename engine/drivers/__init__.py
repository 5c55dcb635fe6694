"""Drivers: a file for each training system, with its settings and what it does on a job.

`driver` is the base of settings, and `trainer` of a driver at work on a `job`: the data and the parameters,
and the files that hosts read them from; `identity` has the texts by which checkpoints know a network.
`downpour` and `sandblaster` are the drivers.
"""

from partita.engine.drivers.downpour import Downpour
from partita.engine.drivers.driver import Driver
from partita.engine.drivers.sandblaster import Sandblaster

__all__ = ["Downpour", "Driver", "Sandblaster"]
