"""Schedules of drivers that are programs: views, work, exchanges and safe points.

`schedule` draws what a seed adds to its environment, `body` is a part's, over the numbers of a `regression`;
`model` checks every event against `lockstep`, which runs the driver's program in one process. `drawn` plays
`AllReduce` with the settings of a seed.
"""

__all__: list[str] = []
