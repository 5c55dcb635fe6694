"""Drivers' programs in the simulator: every invariant holds, and planted faults are caught."""

from __future__ import annotations

import pytest

from partita.engine.protocol.exchange import Hierarchical, Ring, Server, Tree
from partita.engine.testing import play
from tests.simulation.outcomes import all_hold
from tests.simulation.planted_program import FAULTS, AllReduceSGD, Planted

ALGORITHMS = (Ring(), Tree(), Hierarchical(), Server())


@pytest.mark.parametrize("by", ALGORITHMS, ids=lambda by: type(by).__name__)
def test_every_invariant_holds_in_every_schedule(by: object) -> None:
    all_hold(lambda seed: play(AllReduceSGD(by=by), seed), range(120))


@pytest.mark.parametrize("planted", FAULTS, ids=lambda planted: planted.name.replace(" ", "-"))
def test_it_bites(planted: Planted) -> None:
    outcomes = (
        play(AllReduceSGD(), seed, faults=planted.faults) for seed in (planted.at, *range(planted.seeds))
    )
    caught = next((outcome for outcome in outcomes if outcome.violation), None)
    assert caught is not None, "not found within these seeds"
    assert caught.violation is not None
    assert caught.violation.split(":")[0] in planted.reported.split(), caught.violation
    assert caught.trace
