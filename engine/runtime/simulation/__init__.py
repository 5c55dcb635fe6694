"""Plays the real protocol machines on a virtual clock, over a seeded network with faults.

`scenario` draws what a seed stands for, `world` is time and processes, `accidents` what happens to them;
`hosts` and `coordinator` do what every host and every coordinator does around its machine, `schedule` plays
a seed to its end, and `judgement` is how the breach of an invariant is said. What is played, and how it is
judged after every event, stands in a folder for each driver: `downpour` and `sandblaster`.
`python -m partita.engine.runtime.simulation --schedules 10000` plays many.
"""

from partita.engine.runtime.simulation.judgement import Outcome

__all__ = ["Outcome"]
