"""Drivers with vectors of their own in the simulator: linear combinations, inner products, two optimizers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from partita.engine import SGD, Optimizer
from partita.engine.drivers import (
    ADMM,
    Codistillation,
    DiLoCo,
    Driver,
    DynamicAveraging,
    LocalSGD,
    ParameterAveraging,
)
from partita.engine.parameters.compression import PowerSGD, TopK
from partita.engine.protocol import actions as a
from partita.engine.protocol.exchange import Algorithm, Ring, Tree
from partita.engine.protocol.kept_vector import Kept
from partita.engine.protocol.view_change import ViewChange
from partita.engine.protocol.views import Member
from partita.engine.testing import Fault
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


SEEDS = [*range(4)]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("replicas", [1, 3])
def test_all_replicas_have_the_same_vectors_under_any_faults(seed: int, replicas: int) -> None:
    outcome = play_programs(Anchored(replicas=replicas), seed)
    assert outcome.violation is None, outcome


LOCAL = [
    (LocalSGD(replicas=3, every=2), ("parameters",)),
    (DiLoCo(replicas=3, every=2, by=Tree()), ("parameters", "anchor")),
    (DiLoCo(elastic=(1, 4), every=3), ("parameters", "anchor")),
    (LocalSGD(replicas=3, every=2, compress=TopK(0.5)), ("parameters", "anchor")),
    (DiLoCo(elastic=(1, 3), every=3, compress=PowerSGD(1), by=Tree()), ("parameters", "anchor")),
    (ParameterAveraging(replicas=2), ("parameters",)),
    (DynamicAveraging(replicas=4, every=2, delta=0.05), ("reference",)),
    (ADMM(replicas=3, every=2, rho=0.5, l2=0.1), ("parameters", "consensus")),
    (Codistillation(replicas=4, every=3, burn_in=2), ("group_0", "group_1")),
    (Codistillation(replicas=3, groups=3, every=2, burn_in=0), ("group_0", "group_1", "group_2")),
    (
        Codistillation(replicas=4, every=3, burn_in=2, exchange="predictions", keep_every=6),
        ("group_0", "group_1"),
    ),
]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("driver", "agreed"), LOCAL, ids=lambda one: type(one).__name__)
def test_the_end_of_a_round_is_never_half_done(driver: Driver, agreed: tuple[str, ...], seed: int) -> None:
    outcome = play_programs(driver, seed, agreed=agreed)
    assert outcome.violation is None, outcome


def test_the_end_of_a_round_that_a_view_leaves_out_is_found() -> None:
    """The rounds as they would be without what a view says of the last safe point."""

    def forgets(method: Any, change: Any) -> Any:
        return replace(method(change), points=0) if method(change) is not None else None

    driver = DiLoCo(replicas=3, every=2)
    with Fault(ViewChange, "agree", forgets).planted():
        outcomes = (play_programs(driver, seed, agreed=("anchor",)) for seed in range(80))
        assert any(outcome.violation is not None for outcome in outcomes)


def _of_any_group(method: Any, change: Any, replica: int, sources: Any) -> Any:
    return sources


def _all_trusted(method: Any, change: Any, sources: Any) -> Any:
    return sources


@pytest.mark.parametrize(
    ("method", "instead", "seeds"),
    [("_of_group", _of_any_group, (14, 124)), ("_trusted", _all_trusted, (142, 206))],
)
def test_a_group_that_goes_on_from_the_state_of_another_one_is_found(
    method: str, instead: Any, seeds: tuple[int, ...]
) -> None:
    """Copies from any group; and from a process that has read a checkpoint, which has the first group's."""
    driver = Codistillation(replicas=4, every=3, burn_in=2)
    with Fault(ViewChange, method, instead).planted():
        outcomes = [play_programs(driver, seed, agreed=("group_0", "group_1")) for seed in seeds]
    assert any(outcome.violation is not None for outcome in outcomes)


def test_a_student_that_learns_predictions_of_other_examples_is_found() -> None:
    """Nobody predicts the last step of a round: its entry has what an earlier round has left, or zeros."""
    driver = Codistillation(replicas=2, every=3, burn_in=0, exchange="predictions")

    def one_less(method: Any, me: Any, every: Any) -> Any:
        return max(1, method(me, every) - 1)

    with Fault(Member, "left_of", one_less).planted():
        outcomes = [play_programs(driver, seed, agreed=("group_0",)) for seed in (6, 7)]
    assert any("T1" in str(outcome.violation) for outcome in outcomes)
