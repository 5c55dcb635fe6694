"""Replicas that may be at most some steps before the slowest: leases, waits and deaths."""

from __future__ import annotations

import pytest

from partita.engine import Bounded, Compensated, Damped, Downpour
from partita.engine.protocol.events import Died
from partita.engine.testing.downpour import play_downpour
from tests.protocol.coordinating import Run, begins

FIRST, SECOND = ("part 0.0", "part 0.1"), ("part 1.0", "part 1.1")


def report(run: Run, replica: tuple[str, ...], step: int) -> dict[str, tuple[int, int]]:
    """All parts of a replica have done the steps below this one; returns the leases that follow."""
    return {name: found for part in replica for name, found in begins(run.report(part, step)).items()}


@pytest.mark.parametrize("most_ahead", [0, 2])
def test_a_replica_computes_no_step_that_is_too_far_ahead(most_ahead: int) -> None:
    """The last leased step is not computed before another one follows."""
    run = Run(most_ahead=most_ahead, least_ahead=3, units=100).start()
    least = min(3, most_ahead + 2)
    holders = run.machine.mode._work.holders  # type: ignore[attr-defined]
    assert [holder.next for holder in holders.values()] == [least, least]
    for step in range(1, most_ahead + 2):  # as far as it gets alone
        report(run, FIRST, step)
    assert (holders[0].next, holders[1].next) == (most_ahead + 2, least)
    more = report(run, SECOND, 1)
    assert set(more) == {*FIRST, *SECOND}, "the one that waited is told at once"
    assert holders[0].next == most_ahead + 3


def test_a_dead_replica_holds_nobody_up_and_goes_on_beside_the_slowest() -> None:
    run = Run(most_ahead=0, least_ahead=3, units=100).start()
    report(run, FIRST, 1)
    holders = run.machine.mode._work.holders  # type: ignore[attr-defined]
    assert holders[0].next == 2
    run.feed(Died("part 1.0", 0, "killed"))
    for step in range(1, 5):
        run.report("part 0.0", step)
        run.report("part 0.1", step)
        run.wait(2.0, hearing=("shard 0", "shard 1", *FIRST))
    assert holders[0].next == 6, "alone, it is the slowest"
    run.restarted(*SECOND)
    assert (holders[0].next, holders[1].next) == (6, 2)
    report(run, FIRST, 5)
    assert holders[0].next == 6, "the other has a step to do"
    report(run, SECOND, 1)
    assert holders[0].next == 7


@pytest.mark.parametrize("durability", ["checkpoint", "log", "replicated"])
@pytest.mark.parametrize("staleness", [Damped(), Compensated(), Bounded(1)], ids=str)
def test_every_push_counts_once_whatever_dies(staleness: object, durability: str) -> None:
    for seed in range(6):
        driver = Downpour(replicas=2 + seed % 2, shards=2, staleness=staleness)  # type: ignore[arg-type]
        outcome = play_downpour(driver, seed, durability=durability)
        assert outcome.violation is None, f"seed {seed} breaks {outcome.violation}"
