"""Sandblaster: a coordinator that holds no parameters directs replicas and shards through a batch method.

The method asks for operations on vectors, which the shards do on their slices, and for the function's value
and gradient, which the replicas compute portion by portion. Source: DistBelief, section 4.2.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal, TypeAlias, get_args

from typing_extensions import override

from partita.engine.drivers.downpour import Downpour, DownpourTrainer
from partita.engine.drivers.driver import Driver
from partita.engine.drivers.job import Job
from partita.engine.drivers.trainer import Resumed, Trainer
from partita.engine.methods import LBFGS, Method, Objective
from partita.engine.parameters.journal_format import JournalHeader
from partita.engine.protocol.actions import Compute, Install, Plan, Program, Pull, Push, Room
from partita.engine.protocol.commands import Portions
from partita.engine.protocol.coordinator import Coordinator
from partita.engine.protocol.evaluation_mode import EvaluationMode
from partita.engine.protocol.failure import RunFailed, report_of
from partita.engine.protocol.journaled_plan import JournalMismatch
from partita.engine.protocol.leased_work import HasSteps
from partita.engine.protocol.names import Topology, part_name, shard_name
from partita.engine.protocol.views import Outline
from partita.engine.runtime.sandblaster_part import SandblasterPartTask
from partita.engine.runtime.shard_policies import SumPolicy
from partita.layers.checks import check_choice, check_fields, check_flag, check_number, check_whole
from partita.layers.text import counted

LIMITS: Final = ("max_iterations", "gtol", "ftol")
"""Settings of a method that limit its end, not its path: they may change when a run goes on."""

Inline: TypeAlias = Literal["auto", "none", "shard", "all"]
"""Settings of which hosts run in the process of the call."""

INLINE_SIZE: Final = 1 << 16
"""Most parameters of a shard that is inline if nothing is said: operations on them take less than about a
millisecond, so the coordinator answers in time.
"""

_MOST_STRETCH: Final = 4
_LEAST_STRETCHES: Final = 16


@dataclass(frozen=True)
class Sandblaster(Driver):
    """The settings of Sandblaster.

    The parameters after each iteration follow, to the bit, from the plan, the data, the number of shards, and
    the settings that say so below; not from the number of replicas, from failures, or from stragglers.

    Args:
        method: what is done with values and gradients: `LBFGS()`, `NonlinearCG()`, `GradientDescent()`, or
            one of your own.
        replicas: copies of the network, which compute side by side. Each is cut over all machines of the
            plan; a free one gets the next portions.
        shards: servers among which the parameters are divided, and all vectors of the method.
        portion: examples that a replica computes in one step; if not given, those of the plan's batch, or of
            `batch` or all data where these are fewer. Changes the order of sums.
        push_every: portions whose gradient a replica adds up before it sends it; if not given, 4, or fewer
            where a batch has less than 64 portions. Changes the order of sums.
        batch: examples in a sampled batch, a multiple of `portion`; all of the data if not given. Sampled
            batches follow one another through the data, in a new seeded order each epoch.
        overlap: what part of a sampled batch the next one shares, above 0, at most 0.5. The change of the
            gradient is computed on these examples. Rounded to whole portions, 1 or more.
        l2: adds `l2 / 2 * |x|^2` over all parameters to the mean loss.
        backups: whether portions that others still compute at the end of a batch are assigned a second time.
        inline: the hosts that run in the process and thread of the call, so that a message to them takes a
            few microseconds: "none", the "shard" alone, or "all" (the shard and the first replica, where
            there is one shard, and a replica has one machine). "auto" is "shard" for one shard of few
            parameters. With "all" a crash in a node's compiled function ends this process, too; the run goes
            on from its journal.
        warm_start: a run of Downpour that comes first, in the same call; the method begins where it ends.
        warm_epochs: epochs of `warm_start`.

    Raises:
        ValueError: a setting is out of range.
    """

    _meant: ClassVar[Mapping[str, str | tuple[str, ...]]] = {
        "lr": "a method finds the length of each step itself; leave it out",
        "learning_rate": "a method finds the length of each step itself; leave it out",
        "optimizer": ("method",),
        "optimiser": ("method",),
        "rule": ("method",),
        "weight_decay": ("l2",),
    }

    ends = "its method has max_iterations"

    method: Method = field(default_factory=LBFGS)
    replicas: int = 1
    shards: int = 1
    portion: int | None = None
    push_every: int | None = None
    batch: int | None = field(default=None, metadata={"option": "sample"})
    overlap: float = field(default=0.25, metadata={"option": "overlap_share"})
    l2: float = 0.0
    backups: bool = True
    inline: Inline = "auto"
    warm_start: Downpour | None = field(default=None, metadata={"option": ""})
    warm_epochs: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.method, Method):
            raise ValueError(f"Sandblaster's method is {self.method!r}; give a method, for example LBFGS()")
        given = (name for name in ("portion", "push_every", "batch") if getattr(self, name) is not None)
        check_fields(self, check_whole, "replicas", "shards", "warm_epochs", *given, of="Sandblaster's ")
        rule = "; give a number above 0 and at most 0.5, the part of a batch that the next one shares"
        at_most = math.nextafter(0.5, 1.0)
        check_fields(self, check_number, "overlap", of="Sandblaster's ", below=at_most, rule=rule)
        check_fields(
            self, check_number, "l2", of="Sandblaster's ", zero=True, rule="; give 0 or a number above"
        )
        check_fields(self, check_flag, "backups", of="Sandblaster's ")
        check_choice(self.inline, "Sandblaster's inline is", get_args(Inline))
        if not isinstance(self.warm_start, Downpour | None):
            raise ValueError(
                f"Sandblaster's warm_start is {self.warm_start!r}; give a Downpour, or leave it out"
            )

    def objective(self, *, plan_batch: int, examples: int) -> Objective:
        """Returns the function that is minimised, for a number of examples.

        Raises:
            ValueError: the data has no such batches, or a batch no such portions.
        """
        batch = examples if self.batch is None else self.batch
        if batch > examples:
            raise ValueError(
                f"a batch of {batch} examples is more than the data has, {examples}; use a smaller one, or "
                "leave it out to take all"
            )
        portions = Portions(examples, min(plan_batch, batch) if self.portion is None else self.portion)
        if portions.size > batch:
            what = "the data has" if self.batch is None else "a batch has"
            raise ValueError(
                f"a portion of {portions.size} examples is more than {what}, {batch}; use portions of at "
                f"most {batch}, and much smaller ones for several replicas"
            )
        if batch == examples:
            return Objective(portions, l2=self.l2)
        n, left = divmod(batch, portions.size)
        if left:
            raise ValueError(
                f"a batch of {batch} examples is no whole number of portions of {portions.size}; use "
                f"{n * portions.size} or {(n + 1) * portions.size}, or another portion"
            )
        shared = max(1, round(self.overlap * n))
        if 2 * shared > n:
            raise ValueError(
                f"batches of {counted(n, 'portion')} cannot share {shared} with the next one, because at "
                "least half of a batch must be new; use larger batches, or smaller portions"
            )
        return Objective(portions, batch=n, overlap=shared, l2=self.l2)

    @override
    def replica(self, me: HasSteps) -> Program:
        """Section 4.2 of the paper. A step is a work unit: some portions, whose gradient is sent at once."""
        yield Pull()
        for unit in me.steps():
            yield Room()
            yield Install()
            yield Compute(unit)
            yield Push()

    def unit_size(self, objective: Objective) -> int:
        """Returns the number of portions whose gradient is sent at once. Independent of the replicas: the
        same bits.
        """
        if self.push_every is not None:
            return self.push_every
        n = objective.batch or objective.portions.per_epoch
        return max(1, min(_MOST_STRETCH, n // _LEAST_STRETCHES))

    @property
    def method_text(self) -> str:
        """The method without its limits, which a journal must match."""
        method: Any = self.method
        name = type(method).__qualname__
        if not dataclasses.is_dataclass(method):
            return name
        settings = (one.name for one in dataclasses.fields(method) if one.repr and one.name not in LIMITS)
        return f"{name}({', '.join(f'{setting}={getattr(method, setting)!r}' for setting in settings)})"

    @override
    def coordinator(self, run: Outline) -> Plan:
        return (yield from self.method.steps(self.objective(plan_batch=run.batch, examples=run.examples)))

    @override
    def trainers(self, job: Job, epochs: int) -> tuple[Trainer, ...]:
        before, last = self.warm_start, SandblasterTrainer(job, self)
        if before is None:
            return (last,)
        return DownpourTrainer(job, before, epochs=self.warm_epochs, alone=False), last


class SandblasterTrainer(Trainer):
    """One run of a job under Sandblaster."""

    name = "Sandblaster"
    unit = "iteration"
    terms = (
        "durability: process (no death costs an answer; when the machine stops, those since the last "
        "checkpoint)"
    )

    _coordinating: Coordinator

    def __init__(self, job: Job, driver: Sandblaster) -> None:
        """Divides the data into portions.

        Raises:
            ValueError: the settings do not fit the plan or the number of examples.
        """
        super().__init__(job, Topology(driver.replicas, len(job.plan.cluster), driver.shards))
        self.driver: Final = driver
        self.objective: Final = driver.objective(plan_batch=job.plan.batch, examples=job.examples)
        self.unit_size: Final = driver.unit_size(self.objective)
        self.plan: Final = job.plan.with_batch(self.objective.portions.size)

    @property
    @override
    def learner(self) -> Method:
        return self.driver.method

    @property
    @override
    def journal(self) -> JournalHeader:
        job, objective = self.job, self.objective
        return JournalHeader(
            run=self.run_id,
            first_checkpoint=0,
            start="",
            shapes=job.shapes,
            network=job.network,
            precision=job.plan.precision,
            method=self.driver.method_text,
            data=job.checksum if job.keep else "",
            examples=job.examples,
            portion=objective.portions.size,
            unit_size=self.unit_size,
            batch=objective.batch,
            overlap=objective.overlap,
            l2=objective.l2,
            seed=job.seed,
        )

    @property
    @override
    def limit(self) -> int | None:
        return getattr(self.driver.method, "max_iterations", None)

    @override
    def resume(self, resumed: Resumed) -> None:
        pass  # the coordinator repeats what the journal holds

    @override
    def coordinator(self, resumed: Resumed | None) -> Coordinator:
        manifest = None if resumed is None else resumed.manifest
        entries = () if resumed is None else resumed.entries
        try:
            position = 0 if manifest is None else manifest.position or 0
            self._coordinating = Coordinator(
                self.driver.coordinator,
                Outline(0, self.job.examples, self.job.plan.batch, self.driver.replicas),
                EvaluationMode(unit_size=self.unit_size, position=position, backups=self.driver.backups),
                self.topology,
                journal=[(entry.digest, entry.scalars) for entry in entries],
                settings=self.settings,
            )
        except (JournalMismatch, KeyboardInterrupt):
            raise
        except BaseException as error:  # the method may be a user's
            report = report_of(error)
            raise RunFailed.of(f"the method failed: {report.reason}", report.traceback) from error
        return self._coordinating

    @override
    def part(self, replica: int, machine: int, checkpoint: int | None) -> SandblasterPartTask:
        job, driver = self.job, self.driver
        return SandblasterPartTask(
            self.plan,
            machine,
            replica,
            driver.replicas,
            job.files,
            job.examples,
            job.seed,
            driver.shards,
            job.instruction_timeout_s,
            self.objective.sampled,
            driver.replica,
        )

    @property
    @override
    def inline(self) -> tuple[str, ...]:
        chosen, has = self.driver.inline, self.topology
        size = sum(math.prod(shape) for shape in self.job.shapes.values())
        if has.shards > 1 or chosen == "none" or (chosen == "auto" and size > INLINE_SIZE):
            return ()
        alone = chosen == "all" and has.machines == 1
        return (shard_name(0), part_name(0, 0)) if alone else (shard_name(0),)

    @property
    @override
    def policy(self) -> SumPolicy:
        return SumPolicy(unit_size=self.unit_size)

    @override
    def beginning(self, resumed: Resumed | None) -> Iterator[str]:
        portions, batch = self.objective.portions, self.objective.batch
        n, of = (portions.per_epoch, "all data") if batch is None else (batch, "a batch")
        whole = f"{counted(n, 'portion')} of {portions.size}"
        yield f"{self.driver.method!r} on {of}: {whole}, {self.unit_size} for each push"
        if resumed is not None:
            manifest, now = resumed.manifest, self._coordinating
            where = "the start" if manifest is None else f"checkpoint {manifest.checkpoint}"
            journal = f"a journal of {now.plan.answered} answers"
            yield f"resumed from {where} and {journal}, at iteration {sum(now.mode.steps_done)}"
            if now.plan.outcome is not None:
                yield "the method had ended already; allow more iterations or smaller tolerances"

    @override
    def held(self, committed: tuple[int, ...] | None) -> int:
        return sum(self._coordinating.mode.steps_done)  # the journal holds every one
