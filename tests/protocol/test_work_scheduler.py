"""The work scheduler: every unit once, in ranges of each replica, and again only for stragglers."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.engine.protocol.batch_messages import Assignment, AssignmentResult
from partita.engine.protocol.commands import Evaluate, Segment, work_units_of
from partita.engine.protocol.work_scheduler import OPEN_ASSIGNMENTS, STRAGGLER_FACTOR, Dispatch, WorkScheduler


def evaluation(portions: int) -> Evaluate:
    return Evaluate((Segment("g", 0, portions),))


def hands(*, replicas: int, units: int, machines: int = 1, backups: bool = True) -> WorkScheduler:
    found = WorkScheduler(machines, backups=backups)
    for replica in range(replicas):
        found.add(replica, 0.0)
    found.begin(1, work_units_of(evaluation(units), 1))
    return found


def finish(found: WorkScheduler, replica: int, order: Assignment, now: float, *, machine: int = 0) -> None:
    message = AssignmentResult(order.sequence, order.evaluation, order.unit, 1.0 + order.unit, 1)
    found.computed(replica, machine, message, now)
    found.validate()


def units(dispatched: list[Dispatch], replica: int) -> list[int]:
    return [order.unit for who, order in dispatched if who == replica]


def test_each_begins_in_a_range_of_its_own() -> None:
    found = hands(replicas=2, units=8)
    dispatched = found.schedule(0.0)
    assert units(dispatched, 0) == [0, 1]
    assert units(dispatched, 1) == [4, 5]
    assert found.schedule(0.0) == []
    finish(found, 0, dispatched[0][1], 1.0)
    assert units(found.schedule(1.0), 0) == [2]


def test_reading_is_summed_over_replicas_and_over_computations_that_do_not_count() -> None:
    found = hands(replicas=2, units=1)
    (_, mine), *_ = found.schedule(0.0)
    ((_, backup),) = found.schedule(100.0)
    for replica, order, read in ((0, mine, (1.0, 2.0)), (0, mine, (1.0, 2.0)), (1, backup, (3.0, 4.0))):
        result = AssignmentResult(order.sequence, 1, order.unit, 0.0, 0, read=read)
        found.computed(replica, 0, result, 101.0)
    assert found.take_read() == (4.0, 6.0), "a repeated result counts once, a backup counts, too"
    assert found.take_read() == ()


def test_who_is_done_takes_from_the_longest_range() -> None:
    found = hands(replicas=2, units=8)
    open_turns = found.schedule(0.0)
    taken = units(open_turns, 0)
    now = 0.0
    while True:
        mine = next((order for who, order in open_turns if who == 0), None)
        if mine is None:
            break
        now += 1.0
        open_turns = [one for one in open_turns if one[1] is not mine]
        finish(found, 0, mine, now)
        more = found.schedule(now)
        taken += units(more, 0)
        open_turns += more
        if len(taken) > 6:
            break
    assert taken[:6] == [0, 1, 2, 3, 7, 6]
    assert set(taken[6:]) <= {4, 5}  # the other one is late with these by now


def test_a_backup_comes_when_a_replica_is_a_straggler_and_not_before() -> None:
    found = hands(replicas=2, units=2)
    (_, mine), (_, other) = found.schedule(0.0)
    assert (mine.unit, other.unit) == (0, 1)
    finish(found, 0, mine, 1.0)
    assert found.schedule(1.0) == []
    assert found.next_backup_at == STRAGGLER_FACTOR
    assert found.redone == 0
    assert units(found.schedule(STRAGGLER_FACTOR), 0) == [1]
    assert found.redone == 1
    assert found.next_backup_at == math.inf  # nobody is without work


def test_one_replica_makes_up_for_all_the_others() -> None:
    """Units of stragglers are not forgotten while no replica is idle."""
    found = hands(replicas=4, units=12)
    mine = [order for who, order in found.schedule(0.0) if who == 0]
    now = 0.0
    while not found.complete:
        now = now + 1.0 if mine else max(now, found.next_backup_at)
        assert now < 100.0
        if mine:
            finish(found, 0, mine.pop(0), now)
        mine += [order for who, order in found.schedule(now) if who == 0]
    assert now < 3 + 9 + 2 * STRAGGLER_FACTOR + 6


def test_without_backups_nothing_is_given_twice() -> None:
    found = hands(replicas=2, units=2, backups=False)
    (_, mine), _ = found.schedule(0.0)
    finish(found, 0, mine, 1.0)
    assert found.schedule(1e6) == []
    assert found.next_backup_at == math.inf


def test_the_first_result_counts() -> None:
    found = hands(replicas=2, units=1)
    [(_, order)] = found.schedule(0.0)
    [(who, backup)] = found.schedule(10.0)
    assert who == 1
    found.computed(1, 0, AssignmentResult(backup.sequence, 1, 0, 5.0, 3), 11.0)
    assert found.complete
    found.computed(0, 0, AssignmentResult(order.sequence, 1, 0, 7.0, 9), 12.0)
    assert found.losses(evaluation(1)) == (5.0, 3.0)


def test_all_parts_of_a_replica_are_waited_for() -> None:
    found = hands(replicas=1, units=1, machines=2)
    [(_, order)] = found.schedule(0.0)
    finish(found, 0, order, 1.0, machine=1)
    assert not found.complete
    finish(found, 0, order, 1.0, machine=1)
    assert not found.complete
    finish(found, 0, order, 1.0, machine=0)
    assert found.complete
    assert found.losses(evaluation(1)) == (2.0, 2.0)


def test_the_work_units_of_a_dead_replica_go_to_others() -> None:
    found = hands(replicas=2, units=6)
    first = found.schedule(0.0)
    finish(found, 0, first[0][1], 1.0)
    found.remove(0)
    found.validate()
    done = {0}
    open_turns = [one for one in first if one[0] == 1]
    while not found.complete:
        assert open_turns
        _, order = open_turns.pop(0)
        finish(found, 1, order, 2.0)
        done.add(order.unit)
        open_turns += found.schedule(2.0)
    assert done == set(range(6))


def test_what_a_dead_replica_had_computed_is_given_again_only_where_a_shard_lacks_it() -> None:
    found = hands(replicas=2, units=2)
    (_, mine), (_, other) = found.schedule(0.0)
    finish(found, 0, mine, 1.0)
    finish(found, 1, other, 1.0)
    found.missing([(0, 2)])
    assert found.schedule(1.0) == []  # they live, and send it until it is taken
    found.remove(0)
    assert found.schedule(1.0) == []
    found.missing([(0, 2)])
    assert units(found.schedule(1.0), 1) == [0]
    found.missing([(0, 2)])
    assert found.schedule(1.0) == []


def test_assignments_of_an_old_evaluation_keep_a_replica_busy_and_count_for_nothing() -> None:
    found = hands(replicas=2, units=2)
    (_, mine), (_, other) = found.schedule(0.0)
    found.end()
    found.begin(5, work_units_of(evaluation(4), 1))
    found.validate()
    dispatched = found.schedule(0.0)
    assert [who for who, _ in dispatched] == [0, 1]  # each still has an old assignment
    finish(found, 0, mine, 1.0)
    assert not any(found._progress[n].losses for n in range(4))
    assert [who for who, _ in found.schedule(1.0)] == [0]
    assert other.sequence == 0


@given(st.data(), st.integers(1, 4), st.integers(1, 12), st.integers(1, 3))
def test_every_history_ends_with_every_work_unit_counted_once(
    data: st.DataObject, replicas: int, portions: int, machines: int
) -> None:
    found = hands(replicas=replicas, units=portions, machines=machines)
    owed: list[tuple[int, int, Assignment]] = []
    lives = [0] * replicas
    now = 0.0
    for _ in range(200):
        now += 1.0
        for who, order in found.schedule(now):
            owed += [(who, machine, order) for machine in range(machines)]
        found.validate()
        if found.complete:
            break
        if data.draw(st.integers(0, 9)) == 0 and sum(lives) < 6:
            victim = data.draw(st.integers(0, replicas - 1))
            found.remove(victim)
            owed = [one for one in owed if one[0] != victim]
            found.validate()
            found.add(victim, now)
            lives[victim] += 1
            continue
        who, machine, order = owed.pop(data.draw(st.integers(0, len(owed) - 1)))
        finish(found, who, order, now, machine=machine)
        assert max(len(worker.open) for worker in found._workers.values()) <= OPEN_ASSIGNMENTS
    assert found.complete
    exact = sum(machines * (1.0 + n) for n in range(portions))
    assert found.losses(evaluation(portions)) == (exact, machines * portions)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_losses_that_are_not_finite_go_through(bad: float) -> None:
    found = hands(replicas=1, units=2)
    for _, order in found.schedule(0.0):
        found.computed(0, 0, AssignmentResult(order.sequence, 1, order.unit, bad, 0), 1.0)
    loss, _ = found.losses(evaluation(2))
    assert not math.isfinite(loss)


def test_unanswered_assignments_are_repeated() -> None:
    found = hands(replicas=1, units=3)
    first = found.schedule(0.0)
    assert found.resend(0.5, 1.0) == []
    assert found.resend(1.0, 1.0) == first
    assert found.resend(1.5, 1.0) == []
    assert found.stalled(9.0, {0: 10.0}.__getitem__) == []
    assert found.stalled(10.0, {0: 10.0}.__getitem__) == [0]
