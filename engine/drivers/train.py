"""`train`: a plan, data and a driver become a trained network."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from partita.engine.drivers.checks import check_choice, check_plan, check_seconds, whole
from partita.engine.drivers.data import Array, Data, check_data
from partita.engine.drivers.downpour import Downpour
from partita.engine.drivers.downpour_training import DownpourTraining
from partita.engine.drivers.interrupt import ends_on_sigterm
from partita.engine.drivers.job import Job
from partita.engine.drivers.progress import Show
from partita.engine.drivers.run import Run
from partita.engine.launch.placement import Placement
from partita.engine.launch.processes import ProcessLauncher
from partita.partitioner.plan import Plan

if TYPE_CHECKING:
    pass


def train(
    plan: Plan,
    data: Data,
    *,
    driver: Downpour,
    epochs: int,
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
        driver: `Downpour(...)`.
        epochs: passes of each replica over its share of the data.
        seed: of the initial parameters and the order of the examples.
        checkpoints: folder for checkpoints; without one they are kept while the run lasts, for its own
            restarts.
        checkpoint_every_s: seconds from one checkpoint to the next.
        resume: go on from the newest checkpoint in the folder, if there is one. It may be of another plan
            and of other numbers of replicas, shards and examples, but of the same network and rule; what is
            done of an epoch counts as that part of one.
        initial: parameters to start from (by name, or a file that `Run.save` wrote); drawn by the seed if
            not given.
        show: progress as a "live" display, as "lines", as what fits the terminal ("auto"), or "nothing".
        listen: the coordinator's endpoint, `tcp://127.0.0.1:PORT`; any free port if not given.
        places: where some hosts run, by name (`part REPLICA.MACHINE`, `shard NUMBER`); on this machine if
            they are not in there. `listen` must then be at an address that all of them reach.

    Raises:
        ValueError: the network has no loss; the data, a checkpoint or `initial` do not fit it; or an
            argument is not what it should be.
        RunFailed: a host failed; the traceback of the user's function is the note.
        Interrupted: Ctrl-C, after a last checkpoint. A second Ctrl-C ends the run at once.
        OSError: the endpoint is in use, or a disk is full.
    """
    _check(plan, driver, initial)
    epochs, seed = whole(epochs, "epochs is", least=1), whole(seed, "seed is", least=0)
    check_seconds(checkpoint_every_s, "checkpoint_every_s is")
    check_choice(show, "show is", get_args(Show))
    arrays = check_data(plan.graph, data, targets=True, precision=plan.precision)
    # Only who shows a run pays for the display: every host imports this package too.
    from partita.engine.drivers.display import Display

    with ends_on_sigterm(), tempfile.TemporaryDirectory(prefix="partita-") as temporary:
        folder = Path(temporary)
        examples = len(next(iter(arrays.values())))
        kept = Path(checkpoints or folder / "checkpoints")
        job = Job(plan, seed, examples, folder, kept, keep=checkpoints is not None)
        training = DownpourTraining(job, driver, epochs=epochs)
        training.check()
        if resume:
            training.find()
        job.check_writable()
        job.write(arrays, initial)
        with ProcessLauncher(listen=listen, places=places) as launcher, Display(show) as display:
            return training.run(launcher, display, checkpoint_every_s=checkpoint_every_s)


def _check(plan: Plan, driver: Downpour, initial: object) -> None:
    check_plan(plan)
    if not plan.graph.losses:
        raise ValueError(f"network '{plan.graph.name}' has no loss to train; assign one: net.loss = ...")
    if not isinstance(driver, Downpour):
        raise ValueError(f"the driver is {driver!r}; give one with its settings, for example Downpour()")
    if not isinstance(initial, Mapping | str | Path | None):
        raise ValueError(
            f"initial is a {type(initial).__name__}; give a dictionary of parameters by name, or the path of "
            "a file"
        )
