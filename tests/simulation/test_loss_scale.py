"""Loss scales in the simulator: gradients overflow, and all parts skip the same steps whatever fails."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Any

import pytest

from partita.engine import AllReduce, DiLoCo, LocalSGD, LossScale
from partita.engine.drivers import Driver
from partita.engine.protocol import actions as a
from partita.engine.protocol.joined_work import JoinedWork
from partita.engine.protocol.loss_scale import ScaleState
from partita.engine.protocol.view_change import ViewChange
from partita.engine.protocol.views import Member
from partita.engine.testing import Fault
from partita.engine.testing.program import play_programs

HIGH = LossScale(start=2.0**16, double_after=2)
TOGETHER = AllReduce(replicas=3, loss_scale=HIGH)
DRIVERS: list[tuple[Driver, tuple[str, ...]]] = [
    (TOGETHER, ()),
    (AllReduce(elastic=(1, 3), loss_scale=HIGH), ()),
    (AllReduce(replicas=2, shard_optimizer=True, loss_scale=HIGH), ()),
    (LocalSGD(replicas=3, every=2, loss_scale=HIGH), ("parameters",)),
    (DiLoCo(replicas=2, every=3, loss_scale=HIGH), ("anchor",)),
]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("driver", "agreed"), DRIVERS, ids=lambda one: type(one).__name__)
def test_every_step_has_the_scale_of_the_rule(driver: Driver, agreed: tuple[str, ...], seed: int) -> None:
    outcome = play_programs(driver, seed, agreed=agreed)
    assert outcome.violation is None, outcome


@pytest.mark.slow
@pytest.mark.parametrize(("driver", "agreed"), DRIVERS, ids=lambda one: type(one).__name__)
def test_every_step_has_the_scale_of_the_rule_in_many_schedules(
    driver: Driver, agreed: tuple[str, ...]
) -> None:
    for seed in range(3, 300):
        outcome = play_programs(driver, seed, agreed=agreed)
        assert outcome.violation is None, (seed, outcome)


def _forgets(method: Any, change: Any, place: Any) -> None:
    """A view has no scale, so whoever comes in begins with the first one."""


def _uses_all(method: Any, settings: Any, state: ScaleState, *, finite: bool) -> Any:
    """A step that is not finite leaves the scale as it is."""
    return method(settings, state, finite=True)


def _reaches(method: Any, work: Any, step: int) -> Any:
    """A part notes the scale that the step began with."""
    before = work._loss_scale
    found = method(work, step)
    work._loss_scale = before
    return found


PLANTED = [
    (ViewChange, "_loss_scale", _forgets, "S1"),
    (LossScale, "after", _uses_all, "S1"),
    (JoinedWork, "_reach", _reaches, "S1"),
]


@pytest.mark.parametrize(
    ("owner", "name", "instead", "invariant"), PLANTED, ids=lambda one: getattr(one, "__name__", one)
)
def test_a_scale_that_is_forgotten_is_found(owner: type, name: str, instead: Any, invariant: str) -> None:
    with Fault(owner, name, instead).planted():
        found = (play_programs(TOGETHER, seed).violation for seed in range(60))
        assert next(one for one in found if one is not None).startswith(invariant)


class Hasty(AllReduce):
    """Each replica looks at its own gradient alone."""

    def replica(self, me: Member) -> a.Program:
        program: Generator[a.Action, Any, None] = super().replica(me)
        result = None
        while True:
            try:
                action = program.send(result)
            except StopIteration:
                return
            is_norm = isinstance(action, a.Dots)
            result = yield replace(action, among=(me.rank,)) if isinstance(action, a.Dots) else action
            if is_norm:
                result = (result[me.rank],) * me.replicas


def test_replicas_that_each_decide_alone_are_found() -> None:
    driver = Hasty(replicas=3, loss_scale=HIGH)
    assert any(play_programs(driver, seed).violation is not None for seed in range(20))
