"""`train`: a plan, data and a driver become a trained network."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import get_args

from partita.engine.drivers.arrays import Array
from partita.engine.drivers.caller import CALL, Caller
from partita.engine.drivers.checks import check_choice, check_plan, check_seconds, whole
from partita.engine.drivers.data import Data, check_data
from partita.engine.drivers.downpour import Downpour
from partita.engine.drivers.downpour_training import DownpourTraining
from partita.engine.drivers.interrupt import ends_on_sigterm
from partita.engine.drivers.job import Job
from partita.engine.drivers.progress import Show
from partita.engine.drivers.run import Run
from partita.engine.drivers.run_journal import JOURNAL
from partita.engine.drivers.sandblaster import Sandblaster
from partita.engine.drivers.sandblaster_training import SandblasterTraining
from partita.engine.drivers.temporary import temporary_folder
from partita.engine.drivers.training import Keeping, Training
from partita.engine.launch.placement import Placement
from partita.engine.launch.processes import ProcessLauncher
from partita.engine.parameters.checkpoint import Checkpoints
from partita.engine.parameters.folder_lock import held
from partita.engine.parameters.journal import is_journal
from partita.engine.protocol.coordinator_effects import INSTRUCTION_TIMEOUT_S, START_TIMEOUT_S
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
    checkpoint_timeout_s: float = 120.0,
    start_timeout_s: float = START_TIMEOUT_S,
    instruction_timeout_s: float = INSTRUCTION_TIMEOUT_S,
    resume: bool = False,
    overwrite: bool = False,
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
        epochs: passes of each replica over its share of the data: for Downpour. Each example comes once in
            an epoch; the last minibatch of one has what is left. A batch method says itself when it is done.
        seed: of the initial parameters and the order of the examples.
        checkpoints: folder for checkpoints; without one they are kept while the run lasts, for its own
            restarts.
        checkpoint_every_s: seconds from one checkpoint to the next.
        checkpoint_timeout_s: seconds without progress after which the writing of a checkpoint is given up;
            the next one follows, and where it is the last one the run ends with an error.
        start_timeout_s: the longest time that a process may take to start without a sign of life; each
            function that it compiles is one.
        instruction_timeout_s: the longest time that one computation of a part may take (a layer's states of
            a minibatch, for example). A part with one that takes longer is started again; the second time
            the run ends with an error that names part, instruction and layer.
        resume: go on from the newest checkpoint in the folder, if there is one. It may be of another plan
            and of other numbers of replicas, shards and examples, but of the same network and optimizer; what
            is done of an epoch counts as that part of one. Sandblaster goes on from its journal, in the
            middle
            of a line search: with the same network, data, method, portions, batches and seed; replicas,
            shards, the plan and the method's limits may be others.
        overwrite: begin anew in a folder that holds an earlier run. Its checkpoints and its journal are
            removed when this run has written its own, not before.
        initial: parameters to start from (by name, or a file that `Run.save` wrote); drawn by the seed if
            not given.
        show: progress as a "live" display, as "lines", as what fits the terminal ("auto"), or "nothing".
        listen: the coordinator's endpoint, `tcp://127.0.0.1:PORT`; any free port if not given.
        places: where some hosts run, by name (`part REPLICA.MACHINE`, `shard NUMBER`); on this machine if
            they are not in there. `listen` must then be at an address that all of them reach.

    Raises:
        ValueError: the network has no loss; the data, a checkpoint or `initial` do not fit it; an argument is
            not what it should be; the folder is in use by another run, or holds an earlier one and neither
            `resume` nor `overwrite` is given.
        RunFailed: a host failed, and the traceback of the user's function is the note; or a batch method
            could do nothing at all.
        Interrupted: Ctrl-C, after a last checkpoint. A second Ctrl-C ends the run at once.
        OSError: the endpoint is in use, or a disk is full.
    """
    return train_as(
        CALL,
        plan,
        data,
        driver=driver,
        epochs=epochs,
        seed=seed,
        checkpoints=checkpoints,
        checkpoint_every_s=checkpoint_every_s,
        checkpoint_timeout_s=checkpoint_timeout_s,
        start_timeout_s=start_timeout_s,
        instruction_timeout_s=instruction_timeout_s,
        resume=resume,
        overwrite=overwrite,
        initial=initial,
        show=show,
        listen=listen,
        places=places,
    )


def train_as(
    caller: Caller,
    plan: Plan,
    data: Data,
    *,
    driver: Downpour | Sandblaster,
    epochs: int | None = None,
    seed: int = 0,
    checkpoints: str | Path | None = None,
    checkpoint_every_s: float = 30.0,
    checkpoint_timeout_s: float = 120.0,
    start_timeout_s: float = START_TIMEOUT_S,
    instruction_timeout_s: float = INSTRUCTION_TIMEOUT_S,
    resume: bool = False,
    overwrite: bool = False,
    initial: Mapping[str, Array] | str | Path | None = None,
    show: Show = "auto",
    listen: str | None = None,
    places: Mapping[str, Placement] | None = None,
) -> Run:
    """Trains as `train` does, and says what to write next in the caller's words."""
    _check(plan, driver, epochs, initial)
    seed = whole(seed, "seed is", least=0)
    check_seconds(checkpoint_every_s, "checkpoint_every_s is")
    check_seconds(checkpoint_timeout_s, "checkpoint_timeout_s is")
    check_seconds(start_timeout_s, "start_timeout_s is")
    check_seconds(instruction_timeout_s, "instruction_timeout_s is")
    check_choice(show, "show is", get_args(Show))
    if resume and overwrite:
        raise ValueError(f"{caller.resume} and {caller.overwrite} exclude each other; give one of them")
    arrays = check_data(plan.graph, data, targets=True, precision=plan.precision)
    # Only who shows a run pays for the display: every host imports this package too.
    from partita.engine.drivers.display import Display

    with ends_on_sigterm(), contextlib.ExitStack() as stack:
        folder = stack.enter_context(temporary_folder(caller.what))
        kept = Path(checkpoints or folder / "checkpoints")
        job = Job(
            plan,
            seed,
            arrays,
            folder,
            kept,
            keep=checkpoints is not None,
            caller=caller,
            instruction_timeout_s=instruction_timeout_s,
        )
        stages = _stages(job, driver, epochs)
        for training in stages:
            training.check()
        job.check_writable()
        if job.keep:
            stack.enter_context(held(kept, f"{caller.what} of network '{plan.graph.name}'"))
        begun = _begun(stages) if resume else 0
        first = 0 if resume else _first_checkpoint(job, overwrite=overwrite)
        keeping = Keeping(checkpoint_every_s, checkpoint_timeout_s, first)
        job.write(initial)
        run: Run | None = None
        with Display(show) as display:
            for training in stages[begun:]:
                if run is not None:
                    job.begin_with(run.parameters)
                hosts = training.topology.n_hosts
                with ProcessLauncher(hosts=hosts, listen=listen, places=places) as launcher:
                    after = training.run(launcher, display, keeping, start_timeout_s=start_timeout_s)
                run = after if run is None else after.following(run)
        assert run is not None
        return run


def _first_checkpoint(job: Job, *, overwrite: bool) -> int:
    """The number of the first checkpoint of a run that begins anew.

    Raises:
        ValueError: the folder holds an earlier run, which is not to be replaced; or a file of the user's is
            where the journal would be.
    """
    store, journal = Checkpoints(job.checkpoints), job.checkpoints / JOURNAL
    if journal.exists() and not is_journal(journal):
        raise ValueError(f"{journal} is not a journal of a run; move it away, or give another folder")
    complete = store.complete()
    if (complete or journal.exists()) and not overwrite:
        what = f"checkpoint {complete[0]}" if complete else "the journal"
        raise ValueError(
            f"{job.checkpoints} holds {what} of an earlier run; give {job.caller.resume} to go on with it, "
            f"{job.caller.overwrite} to replace it, or another folder"
        )
    return store.next_number()


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
