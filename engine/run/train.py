"""`train`: trains the network of a plan on data, by a driver."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from partita.engine.data.weighing import weighing_of
from partita.engine.drivers.job import Job
from partita.engine.drivers.trainers import trainers
from partita.engine.files.temporary import temporary_folder
from partita.engine.launch.launcher import Launcher
from partita.engine.launch.on import begin, opened
from partita.engine.launch.processes import ProcessLauncher
from partita.engine.launch.request import Launching, LaunchRequest, Log
from partita.engine.parameters.folder_lock import lock_folder
from partita.engine.parameters.journal import is_journal
from partita.engine.parameters.log import log_folders
from partita.engine.protocol.coordinator_effects import Timeouts
from partita.engine.run.calibrated import other_processor
from partita.engine.run.callbacks.dispatch import ending
from partita.engine.run.caller import CALL, Caller
from partita.engine.run.data import run_data
from partita.engine.run.interrupt import ends_on_sigterm
from partita.engine.run.live_page import PageOptions, check_page
from partita.engine.run.phases import Show
from partita.engine.run.run import Run
from partita.engine.run.run_journal import JOURNAL
from partita.engine.run.state_files import initial_of
from partita.engine.run.train_arguments import TrainArguments
from partita.engine.run.training import Training
from partita.engine.run.validation import (
    callbacks_of,
    divided,
    pacing_of,
    validation_data,
)
from partita.engine.transport.encryption import Encryption
from partita.layers.arguments import takes


@takes(TrainArguments)
def train(arguments: TrainArguments) -> Run:
    """Trains a network on processes of this machine, or on those that `on` names."""
    return train_as(CALL, arguments)


def train_as(caller: Caller, arguments: TrainArguments) -> Run:
    """Trains as `train` does, with messages that say what to write next in the caller's words."""
    if arguments.on is not None:
        begin(arguments.place)
    plan, initial = initial_of(arguments.plan, arguments.initial)
    given = replace(arguments, plan=plan, initial=initial)
    graph, weighing = weighing_of(plan.graph, given.sample_weight, given.class_weight)
    if given.resume and given.overwrite:
        raise ValueError(f"{caller.resume} and {caller.overwrite} exclude each other; give one of them")
    if given.on is None and not given.places and (line := other_processor(plan)):
        _noted(given.show)(line)
    with ends_on_sigterm(), contextlib.ExitStack() as stack:
        folder = stack.enter_context(temporary_folder(caller.what))
        data = run_data(
            plan.graph,
            given.data,
            targets=True,
            precision=plan.precision,
            batch=plan.batch,
            folder=folder,
            seed=given.seed,
            weighing=weighing,
            note=_noted(given.show),
        )
        metrics, timeout_s = tuple(given.metrics), given.instruction_timeout_s
        data, held_out = divided(given, data, folder, _noted(given.show))
        validation = None if held_out is None else validation_data(plan, held_out, folder, metrics)
        job = Job(
            plan if weighing is None else plan.of_graph(graph),
            given.seed,
            data.arrays,
            folder,
            data.sources,
            given.store,
            timeout_s,
            metrics,
            validation,
            data.prepared,
            draws=initial is None,
        )
        callbacks = callbacks_of(given)
        watching = _watching(given)
        trainings = [
            Training(one, caller, callbacks, pacing_of(given, one, callbacks, validation), **watching)
            for one in trainers(given.driver, job, given.epochs or 0)
        ]
        for training in trainings:
            training.trainer.check()
        job.check_writable()
        if job.keep:
            stack.enter_context(lock_folder(job.checkpoints, f"{caller.what} of network '{plan.graph.name}'"))
        begun = _begun(trainings) if given.resume else 0
        first = 0 if given.resume else _first_checkpoint(job, caller, overwrite=given.overwrite)
        job.write(initial)
        with ending(callbacks) as found:
            run = _run(trainings[begun:], given, first_checkpoint=first)
            found.append(run if weighing is None else replace(run, plan=run.plan.of_graph(plan.graph)))
    return found[0]


def _noted(show: Show) -> Callable[[str], object]:
    """Returns a function that shows a line before the display is there."""
    return (lambda line: None) if show == "nothing" else (lambda line: print(line, flush=True))


def _watching(given: TrainArguments) -> dict[str, Any]:
    """Returns the settings of watching. Raises ImportError where a page cannot be served."""
    if not given.page and given.save_page is None:
        return {"watch": given.watch}
    check_page()
    save = None if given.save_page is None else Path(given.save_page)
    return {"watch": given.watch or True, "page": PageOptions(save)}


def _run(trainings: Sequence[Training], given: TrainArguments, *, first_checkpoint: int) -> Run:
    """Runs one training after another; each begins with the parameters of the one before."""
    # Only a run that is shown imports the display: every host imports this package too.
    from partita.engine.run.display import Display

    run: Run | None = None
    timeouts = Timeouts(
        checkpoint_every_s=given.checkpoint_every_s,
        save_s=given.checkpoint_timeout_s,
        start_s=given.start_timeout_s,
    )
    encryption = Encryption(payloads=given.encrypt_payloads, trusted_network=given.trusted_network)
    with Display(given.show) as display, contextlib.ExitStack() as stack:
        if not encryption.payloads:
            display.print_line(str(encryption))
        launching = None if given.on is None else stack.enter_context(opened(given.place, display.print_line))
        for training in trainings:
            if run is not None:
                training.trainer.job.begin_with(run.parameters)
            log = display.print_line
            with _launcher(given, training, launching, encryption=encryption, log=log) as launcher:
                after = training.run(launcher, display, timeouts, first_checkpoint=first_checkpoint)
            run = after if run is None else after.following(run)
    assert run is not None
    return run


def _launcher(
    given: TrainArguments,
    training: Training,
    launching: Launching | None,
    *,
    encryption: Encryption,
    log: Log,
) -> Launcher:
    topology = training.trainer.topology
    if launching is None:
        return ProcessLauncher(
            hosts=topology.n_hosts,
            listen=given.listen,
            places=given.places,
            inline=training.trainer.inline,
            encryption=encryption,
            files=training.trainer.catalogue if given.places else None,
        )
    title = f"'{given.plan.graph.name}' by {training.trainer.name}"
    files = training.trainer.catalogue
    job = training.trainer.job
    folder = job.checkpoints if job.keep else None
    return launching(LaunchRequest(given.plan, topology, title, log, files, encryption, folder))


def _first_checkpoint(job: Job, caller: Caller, *, overwrite: bool) -> int:
    """Returns the number of the first checkpoint of a run from the start.

    Raises:
        ValueError: the folder holds an earlier run, which is not to be replaced; or a file of the user's is
            where the journal would be.
    """
    store, journal = job.opened(), job.checkpoints / JOURNAL
    if journal.exists() and not is_journal(journal):
        raise ValueError(f"{journal} is not a journal of a run; move it away, or give another folder")
    complete, logs = store.complete(), log_folders(store.folder)
    if (complete or journal.exists() or logs) and not overwrite:
        what = f"checkpoint {complete[0]}" if complete else "the journal" if journal.exists() else "a log"
        raise ValueError(
            f"{job.place} holds {what} of an earlier run; give {caller.resume} to go on with it, "
            f"{caller.overwrite} to replace it, or another folder"
        )
    return store.next_number()


def _begun(trainings: Sequence[Training]) -> int:
    """The index of the training with which a run goes on: the last one that left something. Raises
    ValueError.
    """
    return next((n for n in reversed(range(len(trainings))) if trainings[n].find(others=n > 0)), 0)
