"""ADMM in its consensus form: each replica fits its own examples, and all agree on one vector.

The function is the mean loss over all examples, and `l2` / 2 times the squared norm of the parameters. Each
replica keeps its own share of the examples (the order of the data is the same in every epoch), parameters x
of its own, and duals y; all have the same z. In a round each replica makes `every` steps on
"its share of the loss + y (x - z) + rho / 2 ||x - z||^2"; then z is the minimum for the replicas' x and y, in
closed form, and y grows by rho (x - z). The duals are kept unscaled (y = rho u), so they stay what they are
where rho changes.

Source: Boyd and others, "Distributed optimization and statistical learning via the alternating direction
method of multipliers", 2011: section 7.1.1 (consensus with a regulariser), 3.3.1 (residuals and their
tolerances; here for whole vectors, without the factor for their length), 3.4.1 (rho by residuals), and 8
(fitting a model to examples that are split).
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, NamedTuple

from typing_extensions import override

from partita.engine.drivers.local_sgd import LocalDriver
from partita.engine.drivers.scaled_losses import computed
from partita.engine.parameters.optimizers import Momentum, Optimizer
from partita.engine.protocol import actions as a
from partita.engine.protocol.exchange import Tree
from partita.engine.protocol.kept_vector import Kept
from partita.engine.protocol.views import Member
from partita.layers.checks import check_fields, check_number

_PAIRS: Final = (
    ("residual", "residual"),
    ("moved", "moved"),
    ("parameters", "parameters"),
    ("agreed", "agreed"),
    ("duals", "duals"),
)
_MOST_APART: Final = 10.0  # a residual and the other one, before rho is changed
_FACTOR: Final = 2.0


class Residuals(NamedTuple):
    """The norms of Boyd's section 3.3, over all replicas, and their tolerances."""

    primal: float
    dual: float
    primal_tolerance: float
    dual_tolerance: float

    @property
    def are_small(self) -> bool:
        """Returns whether both are within their tolerances."""
        return self.primal <= self.primal_tolerance and self.dual <= self.dual_tolerance


@dataclass(frozen=True)
class ADMM(LocalDriver):
    """The settings of consensus ADMM.

    When the residuals are within the tolerances, the steps that are left of the work are passed over.

    Args:
        replicas: copies of the network, which compute side by side. Each is cut over all machines of the
            plan.
        every: steps of a round, by which a replica comes near the minimum of its own function. None: one
            round, to the end of the work.
        by: how replicas add up vectors at the end of a round.
        optimizer: updates the parameters of each replica by its own gradients, with a state of its own.
        elastic: the least and the most replicas, as under `AllReduce`.
        loss_scale: of a plan in float16: the settings of each replica's scale; None: `LossScale()`.
        rho: factor of the squared distance from z, above 0; the first one where it is adapted.
        adapts: whether rho is doubled or halved where one residual is more than ten times the other one.
            After a change of the replicas it begins again with the first one.
        l2: factor of half the squared norm of all parameters, 0 or above.
        absolute, relative: tolerances of the residuals; with 0 for both no run ends early.

    Raises:
        ValueError: a setting is out of range.
    """

    _meant: ClassVar[Mapping[str, str | tuple[str, ...]]] = {
        **LocalDriver._meant,
        "abstol": ("absolute",),
        "reltol": ("relative",),
        "penalty": ("rho",),
    }

    every: int | None = 10
    optimizer: Optimizer = field(default=Momentum(0.1, momentum=0.9, nesterov=True))
    rho: float = 0.02
    adapts: bool = True
    l2: float = 0.0
    absolute: float = 1e-6
    relative: float = 1e-4

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, check_number, "rho", of="ADMM's ", rule="; give a number above 0")
        rule = "; give 0, or a number above"
        check_fields(self, check_number, "l2", "absolute", "relative", of="ADMM's ", zero=True, rule=rule)

    @property
    @override
    def reshuffles(self) -> bool:
        return False

    @property
    @override
    def kept_vectors(self) -> Mapping[str, Kept]:
        return {"consensus": Kept(), "duals": Kept(start="zeros")}

    @property
    @override
    def scratch_vectors(self) -> tuple[str, ...]:
        return "agreed", "residual", "moved"

    @override
    def replica(self, me: Member) -> a.Program:
        rho, is_done = self.rho, False
        for steps in me.rounds(self.every):
            if is_done:
                yield from _passed(steps)
                continue
            for step in steps:
                if (yield from computed(me, step, self.loss_scale, alone=True)):
                    terms = {"gradient": me.share, "duals": 1.0, "parameters": rho, "consensus": -rho}
                    yield a.Combine("gradient", terms, unlearned={"gradient": 1.0})
                    yield a.Apply(self.optimizer)
                yield a.SafePoint()
            found = yield from self._agree(me, rho)
            is_done = found.are_small
            rho = self._adapted(rho, found)

    def _agree(self, me: Member, rho: float) -> Generator[a.Action, Any, Residuals]:
        """Yields the actions of the end of a round; returns its `Residuals`."""
        yield a.Combine("agreed", {"parameters": 1.0, "duals": 1.0 / rho})
        yield a.AllReduce("agreed", by=self.by, mean=True)
        weight = rho * me.replicas
        yield a.Combine("agreed", {"agreed": weight / (weight + self.l2)}, unlearned={"agreed": 1.0})
        yield a.Combine("residual", {"parameters": 1.0, "agreed": -1.0}, unlearned={})
        yield a.Combine("moved", {"agreed": 1.0, "consensus": -1.0}, unlearned={})
        products = yield a.Dots(_PAIRS, by=Tree())
        yield a.Combine("duals", {"duals": 1.0, "residual": rho})
        yield a.Combine("consensus", {"agreed": 1.0})
        yield a.Combine("parameters", {"agreed": 1.0})
        yield a.SafePoint()
        primal, moved, x, z, y = (math.sqrt(math.fsum(column)) for column in zip(*products, strict=True))
        tolerance = self.absolute * math.sqrt(me.replicas)
        return Residuals(
            primal, rho * moved, tolerance + self.relative * max(x, z), tolerance + self.relative * y
        )

    def _adapted(self, rho: float, found: Residuals) -> float:
        if self.adapts and found.primal > _MOST_APART * found.dual:
            return rho * _FACTOR
        if self.adapts and found.dual > _MOST_APART * found.primal:
            return rho / _FACTOR
        return rho


def _passed(steps: Iterator[int]) -> a.Program:
    for _ in steps:
        yield a.SafePoint()
    yield a.SafePoint()
