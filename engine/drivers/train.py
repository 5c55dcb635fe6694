"""`train`: a plan, data and a driver become a trained network."""

from __future__ import annotations

import signal
import tempfile
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import numpy as np

from partita.engine.drivers.data import Array, Data, check_data
from partita.engine.drivers.downpour import Downpour
from partita.engine.drivers.progress import Display, Meter, Show
from partita.engine.drivers.run import Run
from partita.engine.drivers.supervisor import Supervisor
from partita.engine.launch.launcher import Launcher
from partita.engine.launch.processes import ProcessLauncher
from partita.engine.parameters.checkpoint import Checkpoints
from partita.engine.parameters.files import load_parameters, save_parameters
from partita.engine.parameters.initialise import initialise
from partita.engine.parameters.manifest import Manifest
from partita.engine.parameters.reader import Checkpoint
from partita.engine.protocol.coordinator import Coordinator
from partita.engine.protocol.names import Topology, part_indices, shard_index
from partita.engine.protocol.orders import Commit, Patience
from partita.engine.runtime.buffers import layout_of
from partita.engine.runtime.feed import Sampler
from partita.engine.runtime.host import versions
from partita.engine.runtime.serving import ShardTask
from partita.engine.runtime.task import Task
from partita.engine.runtime.training import TrainTask
from partita.partitioner.plan import Plan

ORPHANED_S = 30.0


class Interrupted(KeyboardInterrupt):
    """Ctrl-C: the run was stopped cleanly.

    Attributes:
        run: what it had learnt, from its last checkpoint.
    """

    def __init__(self, message: str, run: Run) -> None:
        super().__init__(message)
        self.run = run


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
) -> Run:
    """Trains a network on processes of this machine.

    Args:
        plan: one replica.
        data: an array for each input and target, `[example, *shape]`; it is divided among the replicas.
        driver: `Downpour(...)`.
        epochs: passes of each replica over its share of the data.
        seed: of the initial parameters and the order of the examples.
        checkpoints: folder for checkpoints; without one they are kept while the run lasts, for its own restarts.
        checkpoint_every_s: seconds from one checkpoint to the next.
        resume: go on from the newest checkpoint in the folder, if there is one.
        initial: parameters to start from (by name, or a file that `Run.save` wrote); drawn by the seed if not given.
        show: progress as a "live" display, as "lines", as what fits the terminal ("auto"), or "nothing".
        listen: the coordinator's endpoint, `tcp://127.0.0.1:PORT`; any free port if not given.

    Raises:
        ValueError: the network has no loss, or the data, a checkpoint or `initial` do not fit it.
        RunFailed: a host failed again and again; the traceback of the user's function is the note.
        Interrupted: Ctrl-C, after a last checkpoint. A second Ctrl-C ends the run at once.
        OSError: the endpoint is in use, or a disk is full.
    """
    if not plan.graph.losses:
        raise ValueError(f"network '{plan.graph.name}' has no loss to train; assign one: net.loss = ...")
    if epochs < 1:
        raise ValueError(f"epochs is {epochs}; train for at least 1")
    arrays = check_data(plan.graph, data, targets=True, precision=plan.precision)
    with tempfile.TemporaryDirectory(prefix="partita-") as folder:
        job = _Job(plan, driver, seed, Path(folder), Path(checkpoints or Path(folder, "checkpoints")))
        found = job.find_checkpoint() if resume else None
        steps = epochs * job.steps_per_epoch(len(next(iter(arrays.values()))))
        job.write(arrays, initial)
        return _Training(job, found, steps, keep=checkpoints is not None).run(
            show=show, listen=listen, checkpoint_every_s=checkpoint_every_s
        )


@dataclass(frozen=True)
class _Job:
    """What the tasks of all hosts are made from."""

    plan: Plan
    driver: Downpour
    seed: int
    folder: Path
    checkpoints: Path

    def steps_per_epoch(self, examples: int) -> int:
        sampler = Sampler(
            examples=examples, batch=self.plan.batch, seed=self.seed, replica=0, replicas=self.driver.replicas
        )
        return sampler.steps_per_epoch

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: parameter.shape for name, parameter in self.plan.graph.parameters.items()}

    @property
    def initial(self) -> Path:
        return self.folder / "initial.safetensors"

    def find_checkpoint(self) -> Checkpoint | None:
        return Checkpoints(self.checkpoints).latest(self.shapes)

    def write(self, arrays: Mapping[str, Array], initial: Mapping[str, Array] | str | Path | None) -> None:
        """Puts the data and the first parameters where every host can read them."""
        for name, array in arrays.items():
            np.save(self.folder / f"{name}.npy", array)
        if initial is None:
            parameters = initialise(self.plan.graph.parameters.values(), self.seed, dtype=self.plan.precision)
        elif isinstance(initial, str | Path):
            parameters = load_parameters(initial, self.shapes)
        else:
            parameters = {name: np.ascontiguousarray(initial[name], self.plan.precision) for name in self.shapes}
        save_parameters(self.initial, parameters)

    def task_of(self, name: str, checkpoint: int | None, *, run: str, examples: int) -> Task:
        part, shard = part_indices(name), shard_index(name)
        driver, plan = self.driver, self.plan
        if part is not None:
            data = {grid.name: self.folder / f"{grid.name}.npy" for grid in (*plan.graph.inputs, *plan.graph.targets)}
            return TrainTask(
                plan,
                part[1],
                part[0],
                driver.replicas,
                data,
                examples,
                self.seed,
                driver.shards,
                driver.rule,
                driver.fetch_every,
                driver.push_every,
                driver.run_ahead,
            )
        assert shard is not None, f"{name} is neither a part nor a shard"
        layout = layout_of(plan, shards=driver.shards)
        return ShardTask(
            shard, layout, driver.rule, run, self.checkpoints, checkpoint, self.initial, plan.precision
        )


class _Training:
    """One run of a job."""

    def __init__(self, job: _Job, found: Checkpoint | None, steps: int, *, keep: bool) -> None:
        self.job, self.steps, self.keep = job, steps, keep
        self.run_id = uuid.uuid4().hex
        self.resumed = None if found is None else found.manifest.checkpoint
        replicas = job.driver.replicas
        self.done = (0,) * replicas
        if found is not None:
            before = found.manifest.steps
            self.done = before if len(before) == replicas else (min(sum(before) // replicas, steps),) * replicas
        self.skipped = () if found is None else found.skipped
        self.store = Checkpoints(job.checkpoints)
        first = next(iter((*job.plan.graph.inputs, *job.plan.graph.targets))).name
        self.examples = len(np.load(job.folder / f"{first}.npy", mmap_mode="r"))

    def run(self, *, show: Show, listen: str | None, checkpoint_every_s: float) -> Run:
        job = self.job
        topology = Topology(job.driver.replicas, len(job.plan.cluster), job.driver.shards)
        coordinator = Coordinator(
            topology,
            steps=self.steps,
            run=self.run_id,
            done=self.done,
            next_checkpoint=self.store.next_number(),
            versions=versions(),
            patience=Patience(checkpoint_every_s=checkpoint_every_s),
        )
        meter = Meter(self.steps, job.plan.batch, self.done)
        launcher: Launcher = ProcessLauncher(listen=listen, orphaned_s=ORPHANED_S)
        with launcher, Display(meter, show) as display:
            self._announce(display)
            supervisor = Supervisor(
                launcher,
                coordinator,
                task_of=lambda name, checkpoint: job.task_of(
                    name, self.resumed if checkpoint is None else checkpoint, run=self.run_id, examples=self.examples
                ),
                commit=self._commit,
                progress=display.update,
                warn=display.say,
            )
            with _stops_on_ctrl_c(supervisor):
                done = supervisor.run()
        run = self._finished(done.checkpoint, done.steps, done.lost, meter)
        if not done.complete:
            where = f"; go on with resume=True and checkpoints='{job.checkpoints}'" if self.keep else ""
            raise Interrupted(f"stopped after {sum(done.steps)} of {meter.total_steps} steps{where}", run)
        return run

    def _announce(self, display: Display) -> None:
        driver, plan = self.job.driver, self.job.plan
        display.say(
            f"{plan.graph.name}: {driver.replicas} replicas of {len(plan.cluster)} machines, {driver.shards} shards; "
            f"durability: checkpoint (a shard's failure costs its pushes since the last checkpoint)"
        )
        for text in self.skipped:
            display.say(text)
        if self.resumed is not None:
            display.say(f"resumed from checkpoint {self.resumed} at step {sum(self.done)}")

    def _commit(self, commit: Commit) -> None:
        job = self.job
        self.store.commit(
            Manifest(
                checkpoint=commit.checkpoint,
                run=self.run_id,
                shapes=job.shapes,
                dtype=job.plan.precision,
                rule=repr(job.driver.rule),
                steps=commit.steps,
                entries=commit.entries,
                lost=commit.lost,
            )
        )
        self.store.prune()

    def _finished(self, checkpoint: int | None, steps: tuple[int, ...], lost: int, meter: Meter) -> Run:
        number = self.resumed if checkpoint is None else checkpoint
        if number is None:
            parameters = load_parameters(self.job.initial, self.job.shapes)
        else:
            parameters = self.store.open(number, self.job.shapes).parameters()
        moment = meter.moment()
        folder = self.job.checkpoints if self.keep else None
        return Run(self.job.plan, parameters, steps, moment.seconds, lost, tuple(meter.history), folder)


@contextmanager
def _stops_on_ctrl_c(supervisor: Supervisor) -> Iterator[None]:
    """The first Ctrl-C asks the run to stop; the second one ends it at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)

    def ask(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, before)
        supervisor.request_stop()

    signal.signal(signal.SIGINT, ask)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
