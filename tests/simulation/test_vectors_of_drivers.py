"""Drivers with vectors of their own in the simulator: linear combinations, inner products, two optimizers."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from partita.engine import SGD, Optimizer
from partita.engine.drivers import Driver
from partita.engine.protocol import actions as a
from partita.engine.protocol.exchange import Algorithm, Ring, Tree
from partita.engine.protocol.kept_vector import Kept
from partita.engine.protocol.views import Member
from partita.engine.testing.program import play_programs


@dataclass(frozen=True)
class Anchored(Driver):
    """A synchronous driver: an outer optimizer follows the parameters, and pulls them back."""

    replicas: int = 1
    optimizer: Optimizer = field(default=SGD(0.05))
    by: Algorithm = field(default=Ring())
    elastic: tuple[int, int] | None = None

    @property
    def kept_vectors(self) -> dict[str, Kept]:
        return {"anchor": Kept(SGD(0.1)), "mean": Kept(start="zeros")}

    @property
    def scratch_vectors(self) -> tuple[str, ...]:
        return ("delta",)

    def replica(self, me: Member) -> a.Program:
        for step in me.steps():
            yield a.Compute(step)
            yield a.Combine("delta", {"gradient": 1.0, "mean": 0.25})
            yield a.AllReduce("delta", by=self.by, weight=1.0 / (1 + me.rank))
            products = yield a.Dots((("delta", "delta"), ("parameters", "anchor")), by=Tree())
            assert len(products) == me.replicas
            assert len({product[0] for product in products}) == 1, "the delta of all is the same"
            length = sum(product[0] for product in products) / me.replicas
            yield a.Combine("gradient", {"delta": 1.0 / (1.0 + length)})
            yield a.AllReduce("gradient", by=self.by, mean=True)
            yield a.Apply(self.optimizer)
            yield a.Combine("delta", {"anchor": 1.0, "parameters": -1.0})
            yield a.Apply(SGD(0.1), gradient="delta", to="anchor")
            yield a.Combine("mean", {"mean": 0.5, "delta": 0.5})
            if length > 0.5:
                yield a.Combine("parameters", {"parameters": 0.75, "anchor": 0.25})
            yield a.SafePoint()


SEEDS = [*range(6)]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("replicas", [1, 3])
def test_all_replicas_have_the_same_vectors_under_any_faults(seed: int, replicas: int) -> None:
    outcome = play_programs(Anchored(replicas=replicas), seed)
    assert outcome.violation is None, outcome
