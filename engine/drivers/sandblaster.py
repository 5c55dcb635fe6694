"""Sandblaster: a coordinator that holds no parameters directs replicas and shards through a batch method.

The method asks for operations on vectors, which the shards do on their slices, and for the function's value
and gradient, which the replicas compute portion by portion. Source: DistBelief, section 4.2.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from partita.engine.drivers.downpour import Downpour
from partita.engine.drivers.driver import Driver
from partita.engine.methods import LBFGS, Method, Objective
from partita.engine.protocol.commands import Portions
from partita.layers.checks import check_fields, check_flag, check_number, check_whole
from partita.layers.text import counted

LIMITS: Final = ("max_iterations", "gtol", "ftol")
"""Settings of a method that limit its end, not its path: they may change when a run goes on."""

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

    method: Method = field(default_factory=LBFGS)
    replicas: int = 1
    shards: int = 1
    portion: int | None = None
    push_every: int | None = None
    batch: int | None = None
    overlap: float = 0.25
    l2: float = 0.0
    backups: bool = True
    warm_start: Downpour | None = None
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
