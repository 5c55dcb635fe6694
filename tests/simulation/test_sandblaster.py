"""Sandblaster in the simulator: the same bits whatever dies, planted faults are caught, backups work."""

from __future__ import annotations

import pytest

from partita.engine import LBFGS, Objective
from partita.engine.protocol import Topology
from partita.engine.protocol.commands import Portions
from partita.engine.testing.sandblaster import Machines, play
from partita.engine.testing.sandblaster.scenario import Scenario
from partita.engine.testing.scenario import Environment
from partita.engine.transport.simulated import NetworkFaults
from tests.simulation.outcomes import Planted, all_hold, is_caught, report_of
from tests.simulation.planted_sandblaster import FAULTS

SCHEDULES = 600


@pytest.mark.parametrize("first", range(0, SCHEDULES, SCHEDULES // 2))
def test_every_invariant_holds_in_every_schedule(first: int) -> None:
    all_hold(play, range(first, first + SCHEDULES // 2))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_invariant_holds_in_very_many_schedules() -> None:
    all_hold(play, range(SCHEDULES, SCHEDULES + 20_000))


@pytest.mark.parametrize("planted", FAULTS, ids=lambda planted: planted.machine.__name__)
def test_it_bites(planted: Planted) -> None:
    is_caught(planted, lambda seed: play(seed, planted.among(Machines)))


def test_schedules_are_of_all_kinds() -> None:
    """Nothing is checked by schedules in which nothing happens."""
    traces = ["\n".join(play(seed, keep_all=True).trace) for seed in range(80)]
    for event in (
        "crashes",
        "freezes for",
        "resumes after",
        "Commit",
        "Restore(",
        "MissingUnits(",
        "Failed(",
        "Multiply(",
        "Restart(",
        "StopRequested",
        "plays for the others",
    ):
        assert sum(event in trace for trace in traces) >= 1, event


def seconds(replicas: int, *, slowness: tuple[float, ...] = (), backups: bool = True) -> float:
    """Virtual time of a run without faults, of a few portions for each replica."""
    portions = Portions(60, 1)
    objective, method = Objective(portions), LBFGS(history=3, max_iterations=3)
    environment = Environment(
        topology=Topology(replicas, 1, 2),
        disk_fails=0.0,
        write_s=0.01,
        checkpoint_every_s=None,
        network=NetworkFaults(),
        chaos_s=200.0,
        faults=0,
        can_kill=True,
        sees_exits=True,
        stall_s=1e6,
        raising=None,
        stop_at=None,
    )
    scenario = Scenario(
        environment=environment,
        machines=(4,),
        portions=portions,
        unit_size=4,
        begin=lambda: method.steps(objective),
        backups=backups,
        portion_s=0.1,
        slowness=slowness,
    )
    outcome = play(3, scenario=scenario)
    assert outcome.violation is None, report_of(outcome)
    return outcome.virtual_s


@pytest.mark.parametrize("slowness", [(10.0,), (100.0,), (10.0, 100.0)])
def test_stragglers_cost_little_and_would_cost_much_without_backups(slowness: tuple[float, ...]) -> None:
    without_them = seconds(4 - len(slowness))
    assert seconds(4, slowness=slowness) <= 1.3 * without_them
    assert seconds(4, slowness=slowness, backups=False) >= 2.5 * without_them


def test_replicas_share_the_work() -> None:
    assert seconds(2) < 0.65 * seconds(1)
