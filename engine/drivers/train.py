"""`train`: a plan, data and a driver become a trained network."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import get_args

from partita.engine.drivers.checks import check_choice, check_plan, check_seconds, whole
from partita.engine.drivers.data import Array, Data, check_data
from partita.engine.drivers.downpour import Downpour
from partita.engine.drivers.downpour_training import DownpourTraining
from partita.engine.drivers.interrupt import ends_on_sigterm
from partita.engine.drivers.job import Job
from partita.engine.drivers.progress import Show
from partita.engine.drivers.run import Run
from partita.engine.drivers.sandblaster import Sandblaster
from partita.engine.drivers.sandblaster_training import SandblasterTraining
from partita.engine.drivers.training import Training
from partita.engine.launch.placement import Placement
from partita.engine.launch.processes import ProcessLauncher
from partita.partitioner.plan import Plan


def train(
    plan: Plan,
    data: Data,
    *,
    driver: Downpour | Sandblaster,
    epochs: int | None = None,
    seed: int = 0,
    checkpoints: str | Path | None = None,
    checkpoint_every_s: float = 30.0,
    resume: bool = False,
    initial: Mapping[str, Array] | str | Path | None = None,
    show: Show = "auto",
    listen: str | None = None,
    places: Mapping[str, Placement] | None = None,
) -> Run:
    """Trains a network on processes of this machine.

    Args:
        plan: one replica.
        data: an array for each input and target, `[example, *shape]`; it is divided among the replicas.
        driver: `Downpour(...)` or `Sandblaster(...)`.
        epochs: passes of each replica over its share of the data: for Downpour. A batch method says itself
            when it is done.
        seed: of the initial parameters and the order of the examples.
        checkpoints: folder for checkpoints; without one they are kept while the run lasts, for its own
            restarts.
        checkpoint_every_s: seconds from one checkpoint to the next.
        resume: go on from the newest checkpoint in the folder, if there is one. It may be of another plan
            and of other numbers of replicas, shards and examples, but of the same network and rule; what is
            done of an epoch counts as that part of one. Sandblaster goes on from its journal, in the middle
            of a line search: with the same network, data, method, portions, batches and seed; replicas,
            shards, the plan and the method's limits may be others.
        initial: parameters to start from (by name, or a file that `Run.save` wrote); drawn by the seed if
            not given.
        show: progress as a "live" display, as "lines", as what fits the terminal ("auto"), or "nothing".
        listen: the coordinator's endpoint, `tcp://127.0.0.1:PORT`; any free port if not given.
        places: where some hosts run, by name (`part REPLICA.MACHINE`, `shard NUMBER`); on this machine if
            they are not in there. `listen` must then be at an address that all of them reach.

    Raises:
        ValueError: the network has no loss; the data, a checkpoint or `initial` do not fit it; or an
            argument is not what it should be.
        RunFailed: a host failed, and the traceback of the user's function is the note; or a batch method
            could do nothing at all.
        Interrupted: Ctrl-C, after a last checkpoint. A second Ctrl-C ends the run at once.
        OSError: the endpoint is in use, or a disk is full.
    """
    _check(plan, driver, epochs, initial)
    seed = whole(seed, "seed is", least=0)
    check_seconds(checkpoint_every_s, "checkpoint_every_s is")
    check_choice(show, "show is", get_args(Show))
    arrays = check_data(plan.graph, data, targets=True, precision=plan.precision)
    # Only who shows a run pays for the display: every host imports this package too.
    from partita.engine.drivers.display import Display

    with ends_on_sigterm(), tempfile.TemporaryDirectory(prefix="partita-") as temporary:
        folder = Path(temporary)
        kept = Path(checkpoints or folder / "checkpoints")
        job = Job(plan, seed, arrays, folder, kept, keep=checkpoints is not None)
        stages = _stages(job, driver, epochs)
        for training in stages:
            training.check()
        begun = _begun(stages) if resume else 0
        job.check_writable()
        job.write(initial)
        run: Run | None = None
        with Display(show) as display:
            for training in stages[begun:]:
                if run is not None:
                    job.begin_with(run.parameters)
                with ProcessLauncher(listen=listen, places=places) as launcher:
                    after = training.run(launcher, display, checkpoint_every_s=checkpoint_every_s)
                run = after if run is None else after.following(run)
        assert run is not None
        return run


def _stages(job: Job, driver: Downpour | Sandblaster, epochs: int | None) -> list[Training]:
    """What is done one after another. Raises ValueError where the driver does not fit the job."""
    if isinstance(driver, Downpour):
        return [DownpourTraining(job, driver, epochs=whole(epochs, "epochs is", least=1))]
    stages: list[Training] = []
    if driver.warm_start is not None:
        stages.append(DownpourTraining(job, driver.warm_start, epochs=driver.warm_epochs, alone=False))
    return [*stages, SandblasterTraining(job, driver)]


def _begun(stages: Sequence[Training]) -> int:
    """The stage with which a run goes on: the last one that has left something. Raises ValueError."""
    return next((n for n in reversed(range(len(stages))) if stages[n].find()), 0)


def _check(plan: Plan, driver: Downpour | Sandblaster, epochs: int | None, initial: object) -> None:
    check_plan(plan)
    if not plan.graph.losses:
        raise ValueError(f"network '{plan.graph.name}' has no loss to train; assign one: net.loss = ...")
    if not isinstance(driver, Downpour | Sandblaster):
        raise ValueError(f"the driver is {driver!r}; give one with its settings, for example Downpour()")
    if isinstance(driver, Sandblaster) and epochs is not None:
        raise ValueError(
            f"epochs is {epochs!r}, and Sandblaster has none; leave it out: its method has max_iterations"
        )
    if not isinstance(initial, Mapping | str | Path | None):
        raise ValueError(
            f"initial is a {type(initial).__name__}; give a dictionary of parameters by name, or the path of "
            "a file"
        )
