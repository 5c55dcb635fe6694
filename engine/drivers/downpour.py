"""Downpour SGD: asynchronous replicas against sharded parameters.

The settings, and a run of a job under them.

Source: DistBelief, section 4.1. Each replica, itself cut over machines, fetches parameters, computes
gradients and pushes them, without waiting for any other; the shards apply each push as it comes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import ClassVar, Final

from typing_extensions import override

from partita.engine.drivers.driver import Driver
from partita.engine.drivers.job import Job
from partita.engine.drivers.trainer import Resumed, Trainer
from partita.engine.parameters.manifest import Manifest
from partita.engine.parameters.optimizers import SGD, Optimizer
from partita.engine.protocol.actions import Compute, Drain, Install, Program, Pull, Push, Room
from partita.engine.protocol.coordinator import Coordinator
from partita.engine.protocol.leased_mode import LeasedMode
from partita.engine.protocol.leased_work import HasSteps
from partita.engine.protocol.names import Topology
from partita.engine.protocol.views import Outline
from partita.engine.runtime.downpour_part import DownpourPartTask
from partita.engine.runtime.feed import Sampler
from partita.engine.runtime.shard_policies import ApplyPolicy
from partita.layers.checks import check_fields, check_whole


@dataclass(frozen=True)
class Downpour(Driver):
    """The settings of Downpour SGD.

    Args:
        replicas: copies of the network, which compute side by side. Each is cut over all machines of the
            plan. They share the steps of an epoch: each takes the next ones when it has done its last.
        shards: servers among which the parameters are divided.
        optimizer: what a shard does with a gradient. Between two fetches a replica steps by the same
            optimizer with a state of its own; with SGD that is the paper's w <- w - alpha * g. Over what it
            fetches it applies, in the same way, its push in flight and the gradients since, where the values
            lack them: exact for SGD, an estimate where the optimizer has a state. One replica alone is
            sequential gradient descent, to the bit.
        fetch_every: steps from one fetch of parameters to the next. The paper's experiments used 1.
        push_every: steps from one push of gradients to the next. The paper's experiments used 1.
        run_ahead: steps that a replica may compute while a shard has not acknowledged its last push. Then it
            waits: a gradient accumulated meanwhile would be too old when applied. (The paper has no bound.)
        overlap: minibatches of a step, one after another through the machines of a horizontal cut. Each
            updates the parameters as soon as its gradients are there, so on a machine that is n machines
            before the loss its gradient is up to n updates late; reports count that as staleness. Fetches and
            pushes come between steps; `fetch_every`, `push_every` and `run_ahead` count steps. (The paper
            has one minibatch.)
        elastic: the least and the most replicas, in the place of `replicas`. The run begins when the shards
            and the least replicas are ready; the others join when they are. A replica that dies too often
            leaves, as long as the least remain, and is tried again later. If not given, the run needs all
            replicas.

    Raises:
        ValueError: a number is not a whole number of at least 1, or the optimizer is none.
    """

    _meant: ClassVar[Mapping[str, str | tuple[str, ...]]] = {
        "lr": "write optimizer=SGD(0.05), or another optimizer",
        "learning_rate": "write optimizer=SGD(0.05), or another optimizer",
        "rate": "write optimizer=SGD(0.05), or another optimizer",
        "rule": ("optimizer",),
    }

    replicas: int = 1
    shards: int = 1
    optimizer: Optimizer = field(default=SGD(0.05))
    fetch_every: int = 1
    push_every: int = 1
    run_ahead: int = 16
    overlap: int = 1
    elastic: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        self._check_elastic()
        counts = (field.name for field in fields(self) if field.name not in ("optimizer", "elastic"))
        check_fields(self, check_whole, *counts, of="Downpour's ")
        if not isinstance(self.optimizer, Optimizer):
            raise ValueError(
                f"Downpour's optimizer is {self.optimizer!r}; give an optimizer, for example SGD(0.05)"
            )

    @override
    def replica(self, me: HasSteps) -> Program:
        """Algorithm 1.1 of the paper. Steps count from 0."""
        yield Pull()
        for step in me.steps():
            yield Room(self.run_ahead)
            yield Install()
            if step % self.fetch_every == 0:
                yield Pull()
            yield Compute(step)
            if (step + 1) % self.push_every == 0:
                yield Push()
        yield Drain()

    @override
    def trainers(self, job: Job, epochs: int) -> tuple[DownpourTrainer, ...]:
        return (DownpourTrainer(job, self, epochs=epochs),)


class DownpourTrainer(Trainer):
    """One run of a job under Downpour."""

    name = "Downpour"
    terms = "durability: checkpoint (a shard's failure costs its pushes since the last checkpoint)"

    def __init__(self, job: Job, driver: Downpour, *, epochs: int, alone: bool = True) -> None:
        """Plans the steps of some epochs; for `alone` and errors see `Trainer`."""
        per_epoch = Sampler(
            examples=job.examples,
            batch=job.plan.batch,
            minibatches=driver.overlap,
            seed=job.seed,
        ).units_per_epoch
        topology = Topology(driver.replicas, len(job.plan.cluster), driver.shards)
        super().__init__(
            job,
            topology,
            steps=epochs * per_epoch,
            steps_per_epoch=per_epoch,
            least=driver.least,
            alone=alone,
        )
        self.driver: Final = driver
        self._epochs: Final = epochs
        self._acknowledged: Final = job.folder / f"acknowledged-{self.run_id}"
        """Folder in which parts record the pushes that shards have acknowledged."""
        self._units_done: tuple[tuple[int, int], ...] = ()

    @property
    @override
    def total(self) -> int:
        return self.steps  # the replicas share them

    @override
    def steps_in(self, manifest: Manifest) -> tuple[int, ...]:
        n, replicas = sum(stop - start for start, stop in self._units_in(manifest)), self.topology.replicas
        return tuple((n + one) // replicas for one in reversed(range(replicas)))

    def _units_in(self, manifest: Manifest) -> tuple[tuple[int, int], ...]:
        """Returns the steps that a checkpoint holds, as ranges: epochs stay epochs."""
        old, new = manifest.steps_per_epoch, self.steps_per_epoch
        if not manifest.done:
            return ((0, int(manifest.epochs * new)),)
        return tuple((-(-start * new // old), stop * new // old) for start, stop in manifest.done)

    @override
    def resume(self, resumed: Resumed) -> None:
        if resumed.manifest is None:
            return
        found = ((start, min(stop, self.steps)) for start, stop in self._units_in(resumed.manifest))
        self._units_done = tuple((start, stop) for start, stop in found if start < stop)
        n, replicas = sum(stop - start for start, stop in self._units_done), self.topology.replicas
        self.done = tuple((n + one) // replicas for one in reversed(range(replicas)))

    @property
    @override
    def learner(self) -> Optimizer:
        return self.driver.optimizer

    @override
    def coordinator(self, resumed: Resumed | None) -> Coordinator:
        job, driver = self.job, self.driver
        return Coordinator(
            driver.coordinator,
            Outline(self._epochs, job.examples, job.plan.batch * driver.overlap, driver.replicas),
            LeasedMode(done=self._units_done),
            self.topology,
            settings=self.settings,
        )

    @override
    def part(self, replica: int, machine: int, checkpoint: int | None) -> DownpourPartTask:
        job, driver = self.job, self.driver
        return DownpourPartTask(
            job.plan,
            machine,
            replica,
            driver.replicas,
            job.files,
            job.examples,
            job.seed,
            driver.shards,
            job.instruction_timeout_s,
            driver.optimizer,
            driver.replica,
            self._acknowledged,
            driver.overlap,
            merges=max(driver.push_every, driver.overlap) > 1,
        )

    @property
    @override
    def policy(self) -> ApplyPolicy:
        return ApplyPolicy(optimizer=self.driver.optimizer, acknowledged=self._acknowledged)
