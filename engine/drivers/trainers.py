"""The trainers of a job: which of the three kinds each of its drivers has.

It follows from a driver's settings and programs.
"""

from __future__ import annotations

from collections.abc import Sequence

from partita.engine.drivers.driver import Driver
from partita.engine.drivers.evaluation_trainer import EvaluationTrainer
from partita.engine.drivers.job import Job
from partita.engine.drivers.joined_trainer import JoinedTrainer
from partita.engine.drivers.leased_trainer import LeasedTrainer
from partita.engine.drivers.scaled_losses import check_driver
from partita.engine.drivers.trainer import Trainer


def trainers(driver: Driver, job: Job, epochs: int) -> Sequence[Trainer]:
    """Returns the trainers of a job, which run one after another.

    Without shards, replicas work together; with shards they work on their own, or evaluate.

    Args:
        driver: its settings and programs.
        job: the work.
        epochs: passes over the data; 0 for a driver without epochs.

    Raises:
        ValueError: the settings do not fit the job, or the driver has no program.
    """
    found: list[Trainer] = []
    stages = driver.stages(epochs)
    for n, (stage, passes) in enumerate(stages, 1):
        one = stage.fitted(job.plan)
        check_driver(one, job.plan)
        one.check_programs()
        kind = JoinedTrainer if not one.shards else EvaluationTrainer if one.evaluates else LeasedTrainer
        found.append(kind(job, one, epochs=passes, alone=n == len(stages)))
    return found
