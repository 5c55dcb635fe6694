"""Drivers' programs in the simulator: every invariant holds, and planted faults are caught."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import pytest

from partita.engine.drivers import AllReduce, Driver
from partita.engine.protocol.actions import AllReduce as AllReduceOf
from partita.engine.protocol.actions import Apply, Compute, Program, SafePoint
from partita.engine.protocol.exchange import Hierarchical, Ring, Server, Tree
from partita.engine.protocol.views import Member
from partita.engine.testing import play
from partita.engine.testing.program.drawn import draw, play_all_reduce
from tests.simulation.outcomes import all_hold
from tests.simulation.planted_program import FAULTS, HOST_FAULTS, Planted

ALGORITHMS = (Ring(), Tree(), Hierarchical(), Server())


@pytest.mark.parametrize("by", ALGORITHMS, ids=lambda by: type(by).__name__)
def test_every_invariant_holds_in_every_schedule(by: object) -> None:
    all_hold(lambda seed: play(AllReduce(replicas=1 + seed % 4, by=by), seed), range(80))


@pytest.mark.parametrize("first", [0, 120])
def test_every_invariant_holds_with_any_settings(first: int) -> None:
    """Sharded optimizers, backup workers and elastic runs are among them."""
    all_hold(play_all_reduce, range(first, first + 120))


@pytest.mark.parametrize("seed", [12_169, 15_224, 21_179, 23_955, 24_297])
def test_seeds_that_broke_an_invariant_hold(seed: int) -> None:
    """A run that lost its work after Ctrl-C called itself complete; a view cut a sharded step. The second
    and the last two were the model's: parts of a replica that had left went on; a sum of one left that out.
    """
    all_hold(lambda seed: play(draw(Random(seed)), seed), [seed])


@dataclass(frozen=True)
class LocalSGD(Driver):
    """Replicas that compute some steps alone, as in `docs/drivers.md`."""

    replicas: int = 3

    def replica(self, me: Member) -> Program:
        for step in me.steps():
            yield Compute(step, alone=True)
            yield Apply(None)
            yield SafePoint()
            if step % 3 == 2 or me.is_last:
                yield AllReduceOf("parameters", by=Ring(), mean=True)
                yield SafePoint()


def test_replicas_that_compute_alone_keep_to_views_and_work() -> None:
    all_hold(lambda seed: play(LocalSGD(), seed), range(120))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_invariant_holds_in_very_many_schedules() -> None:
    all_hold(play_all_reduce, range(240, 10_000))


@pytest.mark.parametrize(
    "planted", [*FAULTS, *HOST_FAULTS], ids=lambda planted: planted.name.replace(" ", "-")
)
def test_it_bites(planted: Planted) -> None:
    outcomes = (
        play(planted.driver, seed, faults=planted.faults) for seed in (planted.at, *range(planted.seeds))
    )
    caught = next((outcome for outcome in outcomes if outcome.violation), None)
    assert caught is not None, "not found within these seeds"
    assert caught.violation is not None
    assert caught.violation.split(":")[0] in planted.reported.split(), caught.violation
    assert caught.trace
