"""Sandblaster: a coordinator that holds no parameters directs replicas and shards through a batch method.

The method asks for operations on vectors, which the shards do on their slices, and for the function's value
and gradient, which the replicas compute portion by portion. Source: DistBelief, section 4.2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, get_args

from typing_extensions import override

from partita.engine.drivers.downpour import Downpour
from partita.engine.drivers.driver import Driver, Inline, settings_text
from partita.engine.methods import LBFGS, Method, Objective
from partita.engine.protocol.actions import Compute, Install, Plan, Program, Pull, Push, Room
from partita.engine.protocol.commands import Portions
from partita.engine.protocol.durability import Durability, durability_of
from partita.engine.protocol.durability.settings import Mode
from partita.engine.protocol.leased_work import HasSteps
from partita.engine.protocol.views import Outline
from partita.layers.checks import check_choice, check_fields, check_flag, check_number, check_whole
from partita.layers.text import counted


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
        elastic: the least and the most replicas, in the place of `replicas`. The run begins when the shards
            and the least replicas are ready; the others join when they are. A replica that dies too often
            leaves, as long as the least remain, and is tried again later. The bits stay the same. If not
            given, the run needs all replicas.
        durability: what a shard's death costs. "checkpoint": all shards go back to the last checkpoint, and
            requests since then are done again. "log": the shard goes on from its log, and "replicated": from
            a second process, its backup; then only units of the evaluation under way are computed again.
            No death costs an answer: the operating system has it in the journal before the method has it, and
            with "log" the disk.

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

    evaluates = True
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
    elastic: tuple[int, int] | None = None
    durability: Mode | Durability = "checkpoint"

    def __post_init__(self) -> None:
        self._check_elastic()
        durability_of(self.durability)
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

    @override
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

    @override
    def unit_size(self, objective: Objective) -> int:
        return super().unit_size(objective) if self.push_every is None else self.push_every

    @property
    @override
    def method_text(self) -> str:
        return settings_text(self.method)

    @override
    def coordinator(self, run: Outline) -> Plan:
        return (yield from self.method.steps(self.objective(plan_batch=run.batch, examples=run.examples)))

    @override
    def stages(self, epochs: int) -> tuple[tuple[Driver, int], ...]:
        own: tuple[Driver, int] = (self, 0)
        return (own,) if self.warm_start is None else ((self.warm_start, self.warm_epochs), own)
