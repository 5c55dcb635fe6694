"""Arguments of `train`: what each means, and what is refused before anything starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, get_args

from partita.engine.data.weighing import ClassWeight, SampleWeight, weighing_of
from partita.engine.drivers.driver import Driver
from partita.engine.files.stores import CheckpointStore, store_of
from partita.engine.launch.on import On, on_of
from partita.engine.launch.placement import Placement
from partita.engine.protocol.coordinator_effects import INSTRUCTION_TIMEOUT_S, START_TIMEOUT_S
from partita.engine.run.arrays import Array
from partita.engine.run.callbacks.dispatch import METHODS
from partita.engine.run.data import Data, check_plan, warn_of_slow_nodes
from partita.engine.run.metrics import OnRecord
from partita.engine.run.phases import Show
from partita.engine.runtime.metric import Metric, check_metrics
from partita.engine.runtime.reported_sums import ReportedSums
from partita.layers.arguments import Arguments
from partita.layers.checks import check_choice, check_fields, check_number, check_seconds, check_whole
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
        sample_weight: factors of the losses of examples: an array with a number for each, or for each of its
            positions; or the name of a column of the data. The loss is the sum of the weighted losses,
            divided by the number of examples. Validation, accuracy and metrics count examples alike.
        class_weight: factors of the loss by label, as `{0: 1.0, 1: 5.0}`; 1 for labels that are not named.
            For a network with one loss over labels. Both factors are multiplied.
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
        "sample_weights": ("sample_weight",),
        "class_weights": ("class_weight",),
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
    sample_weight: SampleWeight | None = None
    class_weight: ClassWeight | None = None
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
        _check_watched(self)
        check_choice(self.show, "show is", get_args(Show))
        object.__setattr__(self, "metrics", check_metrics(self.metrics))
        ReportedSums.of(graph, self.metrics).check(self.plan)
        weighing_of(graph, self.sample_weight, self.class_weight)

    @property
    def store(self) -> CheckpointStore | None:
        """The store of checkpoints; None where they end with the run."""
        return store_of(self.checkpoints)

    @property
    def place(self) -> On:
        """The place where hosts are started, if that is beyond this machine."""
        assert self.on is not None and not isinstance(self.on, str)
        return self.on


def _check_watched(given: TrainArguments) -> None:
    """Checks the arguments. Raises ValueError."""
    counts = (name for name in ("validate_every", "max_steps") if getattr(given, name) is not None)
    check_fields(given, check_whole, *counts, of="")
    if given.validate_every is not None and given.validate_every_s is not None:
        raise ValueError("validate_every and validate_every_s exclude each other; give one of them")
    every = "validate_every" if given.validate_every is not None else "validate_every_s"
    if given.validation is None and getattr(given, every) is not None:
        raise ValueError(f"{every} is given, and there is nothing to validate; give validation=, too")
    if isinstance(given.validation, int | float):
        rule = "; give validation data, or a fraction above 0 and below 1"
        check_number(given.validation, "validation is", below=1.0, rule=rule)
    for one in given.callbacks:
        if isinstance(one, type) or not any(callable(getattr(one, name, None)) for name in METHODS):
            raise ValueError(
                f"{one!r} is no callback; give an object with some of the methods {', '.join(METHODS)}"
            )
