"""`train`: trains the network of a plan on data, by a driver."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, get_args

from partita.engine.drivers.driver import Driver
from partita.engine.drivers.job import Job
from partita.engine.drivers.trainers import trainers
from partita.engine.files.stores import CheckpointStore, store_of
from partita.engine.files.temporary import temporary_folder
from partita.engine.launch.launcher import Launcher
from partita.engine.launch.on import On, begin, on_of, opened
from partita.engine.launch.placement import Placement
from partita.engine.launch.processes import ProcessLauncher
from partita.engine.launch.request import Launching, LaunchRequest, Log
from partita.engine.parameters.folder_lock import lock_folder
from partita.engine.parameters.journal import is_journal
from partita.engine.parameters.log import log_folders
from partita.engine.protocol.coordinator_effects import INSTRUCTION_TIMEOUT_S, START_TIMEOUT_S, Timeouts
from partita.engine.run.arrays import Array
from partita.engine.run.callbacks.dispatch import ending
from partita.engine.run.caller import CALL, Caller
from partita.engine.run.data import Data, check_plan, run_data, warn_of_slow_nodes
from partita.engine.run.interrupt import ends_on_sigterm
from partita.engine.run.live_page import PageOptions, check_page
from partita.engine.run.metrics import OnRecord
from partita.engine.run.phases import Show
from partita.engine.run.run import Run
from partita.engine.run.run_journal import JOURNAL
from partita.engine.run.state_files import initial_of
from partita.engine.run.training import Training
from partita.engine.run.validation import (
    callbacks_of,
    check_watched,
    divided,
    pacing_of,
    validation_data,
)
from partita.engine.runtime.metric import Metric, check_metrics
from partita.engine.runtime.reported_sums import ReportedSums
from partita.engine.transport.encryption import Encryption
from partita.layers.arguments import Arguments, takes
from partita.layers.checks import check_choice, check_fields, check_seconds, check_whole
from partita.partitioner.plan import Plan


@dataclass(frozen=True)
class TrainArguments(Arguments):
    """The arguments of `train`.

    Args:
        plan: the plan of one replica.
        data: an array for each input and target, `[example, *shape]`, or a source, as `Files(...)`; or data
            of another kind (a data set of PyTorch or Hugging Face, a frame of pandas, a pattern of files, a
            function that opens a stream), or a `Loader` of any of these. The replicas share it.
        driver: `Downpour(...)`, `AllReduce(...)`, `Sandblaster(...)`, or one of your own.
        epochs: passes over the data, which the replicas share. Each example comes once in an epoch; the last
            minibatch of an epoch has the remainder. A batch method decides itself when it is done.
        seed: seed of the initial parameters and of the order of the examples.
        checkpoints: folder for checkpoints, or a store: `SharedFolder(...)` if all machines have it, or a URL
            that `fsspec` can write. If not given, checkpoints are kept while the run lasts, for its own
            restarts.
        checkpoint_every_s: seconds from one checkpoint to the next.
        checkpoint_timeout_s: seconds without progress after which the writing of a checkpoint is given up.
            The next one follows; if it is the last one, the run ends with an error.
        start_timeout_s: seconds that a process may take to start without a sign of life. Each function that
            it compiles is a sign of life.
        instruction_timeout_s: seconds that one computation of a part may take, for example the activations of
            a layer for a minibatch. A part that takes longer is started again; the second time the run ends
            with an error that names part, instruction and layer.
        resume: go on from the newest checkpoint in the folder, if there is one. The plan and the numbers of
            replicas, shards and examples may differ, but not the network and the optimizer; the finished
            fraction of an epoch is kept. Sandblaster goes on from its journal, in the middle of a line
            search: with the same network, data, method, portions, batches and seed; replicas, shards, the
            plan and the method's limits may differ.
        overwrite: replace the earlier run in the folder. Its checkpoints and its journal are removed when
            this run has written its own, not before.
        initial: parameters to start from, as arrays or tensors by the names of the network or of its module
            (`module.state_dict()`); or the path of a file that `Run.save` or `torch.save` wrote, or of a
            folder of checkpoints. Drawn by the seed if not given.
        show: progress as a "live" display, as "lines", as what fits the terminal ("auto"), or "nothing".
        listen: the coordinator's endpoint, `tcp://127.0.0.1:PORT`; any free port if not given.
        on: where hosts are started: at the workers of a pool, `Pool(...)` or its address "tcp://HOST:PORT";
            at the ranks of the job that this process belongs to, `Environment(...)` or "env"; on the machines
            of a hostfile, by ssh, `HostFile(...)` or "hostfile:PATH"; on a Ray cluster, `Ray(...)` or "ray";
            processes of this machine if not given. With "env", all ranks but rank 0 serve here until the
            process of rank 0 has ended, and then raise SystemExit. Machines need
            nothing in common but the network.
        places: where some hosts run, by name (`part REPLICA.MACHINE`, `shard NUMBER`, `backup NUMBER`); hosts
            that are not named run on this machine. `listen` must then be an address that all of them reach.
        encrypt_payloads: False sends gradients, parameters and activations between machines as they are;
            messages and tasks are encrypted nevertheless, and hosts authenticated. On loopback alone, unless
            `trusted_network`.
        trusted_network: allows `encrypt_payloads=False` beyond loopback: whoever can read or change what is
            sent on this network may do so.
        metrics: figures that are reported beside the loss, such as `[TopK(5), MeanAbsoluteError()]`: in the
            progress, the history and the records. Accuracy is always reported for losses with labels.
        watch: write what the run does to a file that can be followed (`partita watch`): where the steps
            of each machine go, who waits for whom, progress, memory, events. True: `records-1.jsonl` (or
            the next number) in the folder of checkpoints, or in a temporary one, whose name is shown; or
            the path of a file.
        page: serve a page on which browsers of this machine see the run while it goes on. Its address, with
            a token, is shown. It needs the extra `page`, and implies `watch`. When the run ends, the page is
            kept as one file that needs no server.
        save_page: path of that file; beside the records if not given. Implies `page`.
        on_record: called in this thread with each `Record` of the metrics: steps of a replica, or an
            iteration.
        validation: data that is evaluated in the course of the run by the replicas themselves, as `data`; or
            the fraction of the examples, all of them arrays, that is held out for that, chosen by the seed.
        validate_every: steps of all replicas, or iterations, from one validation to the next; if not given,
            an epoch, or one iteration. The replicas stop for it where all of them agree on the parameters.
        validate_every_s: seconds, in the place of `validate_every`.
        callbacks: objects that watch the run and act on it: `EarlyStopping()`, `ModelCheckpoint(...)`,
            `ReduceOnPlateau()`, loggers such as `CSVLog(path)`, and your own (see `Callback`).
        max_s: seconds after which the run ends at a safe point, with a last checkpoint and its result.
        max_steps: steps of all replicas, or iterations, after which the run ends, likewise; those of earlier
            runs that it goes on from count.

    Raises:
        ValueError: the network has no loss; the data, a checkpoint or `initial` do not fit it; an argument is
            out of range; another run uses the folder, or it holds an earlier run and neither `resume` nor
            `overwrite` is given.
        RunFailed: a host failed (the traceback of the user's function is its note), or a batch method failed
            from the start.
        Interrupted: Ctrl-C, after a last checkpoint. A second Ctrl-C ends the run at once.
        OSError: the endpoint is in use, or a disk is full.
    """

    _meant: ClassVar[Mapping[str, str | tuple[str, ...]]] = {
        "optimizer": "it is an argument of the driver: driver=Downpour(optimizer=SGD(0.05))",
        "lr": "write driver=Downpour(optimizer=SGD(0.05))",
        "learning_rate": "write driver=Downpour(optimizer=SGD(0.05))",
        "batch": "the batch is that of partition(net, cluster, batch=...)",
        "batch_size": "the batch is that of partition(net, cluster, batch=...)",
        "replicas": "it is an argument of the driver: driver=Downpour(replicas=...)",
        "shards": "it is an argument of the driver: driver=Downpour(shards=...)",
        "num_epochs": ("epochs",),
        "validation_data": ("validation",),
        "validation_split": ("validation",),
        "validation_freq": ("validate_every",),
        "max_time": ("max_s",),
        "verbose": ("show",),
        "metric": ("metrics",),
        "weighted_metrics": ("metrics",),
        "loss": "the loss is the network's: net.loss = SoftmaxCrossEntropy()(scores, net.target(...))",
        "loss_weights": "weights are the network's: net.loss = loss + 0.3 * other",
        "class_weight": "it is an argument of the loss: SoftmaxCrossEntropy(weight=...)",
        "sample_weight": "it is a target of the loss: Loss()(scores, target, sample_weight=net.target(...))",
        "checkpoint_every": ("checkpoint_every_s",),
    }

    plan: Plan
    data: Data
    _: KW_ONLY
    driver: Driver
    epochs: int | None = None
    seed: int = 0
    checkpoints: str | Path | CheckpointStore | None = None
    checkpoint_every_s: float = 30.0
    checkpoint_timeout_s: float = 120.0
    start_timeout_s: float = START_TIMEOUT_S
    instruction_timeout_s: float = INSTRUCTION_TIMEOUT_S
    resume: bool = False
    overwrite: bool = False
    initial: Mapping[str, Array] | str | Path | None = None
    show: Show = "auto"
    listen: str | None = None
    places: Mapping[str, Placement] | None = None
    encrypt_payloads: bool = True
    trusted_network: bool = False
    on_record: OnRecord | None = None
    metrics: Sequence[Metric] = ()
    validation: Data | float | None = None
    validate_every: int | None = None
    validate_every_s: float | None = None
    callbacks: Sequence[Any] = ()
    max_s: float | None = None
    max_steps: int | None = None
    watch: bool | str | Path = False
    page: bool = False
    save_page: str | Path | None = None
    on: On | str | None = None

    def __post_init__(self) -> None:
        check_plan(self.plan)
        warn_of_slow_nodes(self.plan.graph)
        graph = self.plan.graph
        if not graph.losses:
            raise ValueError(f"network '{graph.name}' has no loss to train; assign one: net.loss = ...")
        if not isinstance(self.driver, Driver):
            raise ValueError(
                f"the driver is {self.driver!r}; give one with its settings, for example Downpour()"
            )
        if not self.driver.ends:
            check_fields(self, check_whole, "epochs", of="")
        elif self.epochs is not None:
            name = type(self.driver).__name__
            raise ValueError(
                f"epochs is {self.epochs!r}, and {name} has none; leave it out: {self.driver.ends}"
            )
        if not isinstance(self.initial, Mapping | str | Path | None):
            raise ValueError(
                f"initial is a {type(self.initial).__name__}; give a dictionary of parameters by name, or "
                "the path of a file"
            )
        if self.on is not None and (self.places or self.listen is not None):
            raise ValueError("on says where hosts run; leave out listen and places, or on")
        if self.on is not None:
            object.__setattr__(self, "on", on_of(self.on))
        store_of(self.checkpoints)
        check_fields(self, check_whole, "seed", of="", least=0)
        seconds = (field.name for field in fields(self) if field.name.endswith("_s"))
        check_fields(
            self, check_seconds, *(name for name in seconds if getattr(self, name) is not None), of=""
        )
        check_watched(self)
        check_choice(self.show, "show is", get_args(Show))
        object.__setattr__(self, "metrics", check_metrics(self.metrics))
        ReportedSums.of(graph, self.metrics).check(self.plan)

    @property
    def store(self) -> CheckpointStore | None:
        """The store of checkpoints; None where they end with the run."""
        return store_of(self.checkpoints)

    @property
    def place(self) -> On:
        """The place where hosts are started, if that is beyond this machine."""
        assert self.on is not None and not isinstance(self.on, str)
        return self.on


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
    if given.resume and given.overwrite:
        raise ValueError(f"{caller.resume} and {caller.overwrite} exclude each other; give one of them")
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
            note=_noted(given.show),
        )
        metrics, timeout_s = tuple(given.metrics), given.instruction_timeout_s
        data, held_out = divided(given, data, folder, _noted(given.show))
        validation = None if held_out is None else validation_data(plan, held_out, folder, metrics)
        job = Job(
            plan,
            given.seed,
            data.arrays,
            folder,
            data.sources,
            given.store,
            timeout_s,
            metrics,
            validation,
            data.prepared,
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
            found.append(_run(trainings[begun:], given, first_checkpoint=first))
    return found[0]


def _noted(show: Show) -> Callable[[str], object]:
    """Returns a function that shows a line before the display is there."""
    return (lambda line: None) if show == "nothing" else (lambda line: print(line, flush=True))


def _watching(given: TrainArguments) -> dict[str, Any]:
    """How the run is watched. Raises ImportError where a page is asked for that cannot be served."""
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
