"""`train`: a plan, data and a driver become a trained network."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from partita.engine.drivers.checks import check_choice, check_plan, check_seconds, whole
from partita.engine.drivers.data import Array, Data, check_data
from partita.engine.drivers.downpour import Downpour
from partita.engine.drivers.interrupt import Interrupted, ends_on_sigterm, stops_on_ctrl_c
from partita.engine.drivers.job import Job
from partita.engine.drivers.progress import Meter, Show
from partita.engine.drivers.run import Run
from partita.engine.drivers.supervisor import RunFailed, Supervisor
from partita.engine.launch.launcher import Launcher
from partita.engine.launch.placement import Placement
from partita.engine.launch.processes import ProcessLauncher
from partita.engine.parameters.checkpoint import Checkpoints
from partita.engine.parameters.files import load_parameters
from partita.engine.parameters.manifest import Manifest
from partita.engine.parameters.reader import Checkpoint
from partita.engine.protocol.coordinator import Coordinator
from partita.engine.protocol.names import Topology
from partita.engine.protocol.orders import Commit, Done, Patience
from partita.engine.runtime.host import versions
from partita.partitioner.plan import Plan

if TYPE_CHECKING:
    from partita.engine.drivers.display import Display


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
    with ends_on_sigterm(), tempfile.TemporaryDirectory(prefix="partita-") as temporary:
        folder = Path(temporary)
        examples = len(next(iter(arrays.values())))
        job = Job(plan, driver, seed, examples, folder, Path(checkpoints or folder / "checkpoints"))
        steps = whole(epochs * job.steps_per_epoch, "the number of steps is", least=1)
        job.check_sizes()
        found = job.find_checkpoint() if resume else None
        job.check_writable()
        job.write(arrays, initial)
        training = _Training(job, found, steps, keep=checkpoints is not None)
        return training.run(show=show, listen=listen, places=places, checkpoint_every_s=checkpoint_every_s)


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


class _Training:
    """One run of a job."""

    def __init__(self, job: Job, found: Checkpoint | None, steps: int, *, keep: bool) -> None:
        self.job, self.steps, self.keep = job, steps, keep
        self.run_id = uuid.uuid4().hex
        self.resumed = None if found is None else found.manifest.checkpoint
        self.skipped = () if found is None else found.skipped
        self.store = Checkpoints(job.checkpoints)
        self.next_checkpoint = self.store.next_number()
        self.committed: tuple[int, ...] | None = None  # the steps that the last checkpoint holds
        if found is not None:
            self.committed = job.steps_in(found.manifest)
        self.done = tuple(min(done, steps) for done in self.committed or (0,) * job.driver.replicas)

    def run(
        self,
        *,
        show: Show,
        listen: str | None,
        places: Mapping[str, Placement] | None,
        checkpoint_every_s: float,
    ) -> Run:
        # Only who shows a run pays for the display: every host imports this package too.
        from partita.engine.drivers.display import Display

        plan = self.job.plan
        meter = Meter(self.steps, self.done, len(plan.cluster), classifiers=len(plan.graph.classifiers))
        launcher = ProcessLauncher(listen=listen, places=places)
        with launcher, Display(meter, show) as display:
            supervisor = self._supervisor(launcher, display, checkpoint_every_s)
            with stops_on_ctrl_c(supervisor.request_stop):
                self._announce(display)
                try:
                    done = supervisor.run()
                except RunFailed as failure:
                    raise failure.with_hint(self._kept()) from None
        return self._finished(done, meter)

    def _supervisor(self, launcher: Launcher, display: Display, checkpoint_every_s: float) -> Supervisor:
        driver, plan = self.job.driver, self.job.plan
        coordinator = Coordinator(
            Topology(driver.replicas, len(plan.cluster), driver.shards),
            steps=self.steps,
            run=self.run_id,
            done=self.done,
            next_checkpoint=self.next_checkpoint,
            versions=versions(),
            patience=Patience(checkpoint_every_s=checkpoint_every_s),
        )
        return Supervisor(
            launcher,
            coordinator,
            task_of=lambda name, checkpoint: self.job.task_of(
                name, self.resumed if checkpoint is None else checkpoint, run=self.run_id
            ),
            commit=self._commit,
            progress=display.update,
            warn=display.say,
        )

    def _announce(self, display: Display) -> None:
        driver, plan = self.job.driver, self.job.plan
        counts = (driver.replicas, "replica"), (len(plan.cluster), "machine"), (driver.shards, "shard")
        replicas, machines, shards = (f"{n} {what}{'s' * (n > 1)}" for n, what in counts)
        display.say(
            f"{plan.graph.name}: {replicas} of {machines}, {shards}; "
            f"durability: checkpoint (a shard's failure costs its pushes since the last checkpoint)"
        )
        for text in self.skipped:
            display.say(text)
        if self.resumed is not None:
            display.say(f"resumed from checkpoint {self.resumed} at step {sum(self.done)}")
            if min(self.done) == self.steps:
                total = self.steps * len(self.done)
                display.say(f"the checkpoint has all {total} steps already; ask for more epochs")
        elif self.next_checkpoint > 1:
            display.say(
                f"{self.job.checkpoints} has checkpoints of an earlier run, and this one starts anew and "
                "replaces them; to go on with the earlier run, stop and resume"
            )

    def _commit(self, commit: Commit) -> None:
        job = self.job
        self.store.commit(
            Manifest(
                checkpoint=commit.checkpoint,
                run=self.run_id,
                shapes=job.shapes,
                dtype=job.precision,
                rule=repr(job.driver.rule),
                steps=commit.steps,
                steps_per_epoch=job.steps_per_epoch,
                entries=commit.entries,
                lost=commit.lost,
            )
        )
        self.committed = commit.steps
        self.store.prune()

    def _kept(self) -> str:
        """What of the run is on disk, and how to go on with it; empty when there is nothing."""
        if not self.keep or self.committed is None or not any(self.committed):
            return ""
        total = self.steps * len(self.done)
        held = f"holds {sum(self.committed)} of {total} steps, and resume goes on from it"
        return f"the checkpoint in {self.job.checkpoints} {held}"

    def _finished(self, done: Done, meter: Meter) -> Run:
        number = self.resumed if done.checkpoint is None else done.checkpoint
        if number is None:
            parameters = load_parameters(self.job.initial, self.job.shapes)
        else:
            parameters = self.store.open(number, self.job.shapes).parameters()
        steps = self.done if self.committed is None else self.committed
        folder = self.job.checkpoints if self.keep else None
        run = Run(self.job.plan, parameters, steps, meter.seconds, done.lost, tuple(meter.history), folder)
        if not done.complete:
            stopped, kept = f"stopped after {sum(done.steps)} of {meter.total_steps} steps", self._kept()
            raise Interrupted(f"{stopped}; {kept}" if kept else stopped, run)
        return run
