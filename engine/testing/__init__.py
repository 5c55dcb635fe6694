"""Plays the real protocol machines on a virtual clock, over a seeded network with faults.

`play` plays a driver's programs under deaths, delays, drops and splits; a `Fault` is planted in a machine
(`planting`), or a faulty machine is played for a real one, to see that it is caught. The `Outcome` has the
trace.

`scenario` draws what a seed stands for, `world` is time and processes, `faults` are injected into it. A
`host` runs the machine of every host and that of its role, around that of `parts` or that of the
`shards`, which have a few `vectors`; `schedule` is the coordinator and the play of a seed, and its `user`
validates, stops it and changes the learning rate. They share a `layout` and a `disk`; replicas leave an
`elastic` run. A `filesystem` loses power: on one is the disk, and on one the `log` of each shard. Some
members may be `hostile`: they send frames that are made by `forging`, from a `corpus`. `invariants` reports
what breaks. A driver's own play and checks stand in its folder: `downpour` for drivers with shards,
`sandblaster`, and `program` for drivers without shards; `goodput` plays a run in peace and under kills, and
`storms` draws the settings of each driver.
`python -m partita.engine.testing --schedules 10000` plays many.
"""

from partita.engine.testing.invariants import Outcome
from partita.engine.testing.planting import Fault, play

__all__ = ["Fault", "Outcome", "play"]
