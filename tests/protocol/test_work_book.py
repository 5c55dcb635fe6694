"""The book of work: every unit is done once, in order, whoever takes it, and whatever a part misses."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.engine.protocol.leases import LeasedSteps
from partita.engine.protocol.messages import Lease
from partita.engine.protocol.ranges import Ranges
from partita.engine.protocol.work_book import Holder, WorkBook


def test_ranges_join_their_neighbours() -> None:
    ranges = Ranges([(4, 6), (0, 2)])
    assert (list(ranges), ranges.size) == ([(0, 2), (4, 6)], 4)
    ranges.add(2, 4)
    assert (list(ranges), ranges.size, len(ranges)) == ([(0, 6)], 6, 1)
    ranges.add(9, 9)
    ranges.add(8, 9)
    assert [ranges.take(4), ranges.take(4), ranges.take(4)] == [(0, 4), (4, 6), (8, 9)]
    assert not len(ranges) and not ranges.size


def test_a_number_is_added_once() -> None:
    ranges = Ranges([(2, 5)])
    for start, stop in ((4, 6), (0, 3), (3, 4)):
        with pytest.raises(AssertionError):
            ranges.add(start, stop)


@given(st.lists(st.booleans(), max_size=40))
def test_gaps_are_what_a_set_lacks(members: Sequence[bool]) -> None:
    ranges = Ranges((n, n + 1) for n, member in enumerate(members) if member)
    gaps = [n for start, stop in ranges.gaps(0, len(members)) for n in range(start, stop)]
    assert gaps == [n for n, member in enumerate(members) if not member]
    assert len(ranges) == sum(a and not b for a, b in pairwise([*members, False]))


_SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=8)


@given(_SPANS, _SPANS)
def test_ranges_are_sets(covered: Sequence[tuple[int, int]], discarded: Sequence[tuple[int, int]]) -> None:
    ranges, numbers = Ranges(), set[int]()
    for start, stop in covered:
        ranges.cover(start, stop)
        numbers |= {*range(start, stop)}
    other = Ranges()
    for start, stop in discarded:
        other.cover(start, stop)
    assert {n for one in ranges.common(other) for n in range(*one)} == numbers & {
        n for one in other for n in range(*one)
    }
    for start, stop in discarded:
        ranges.discard(start, stop)
        numbers -= {*range(start, stop)}
    assert {n for one in ranges for n in range(*one)} == numbers
    assert ranges.size == len(numbers)
    assert all(a[1] < b[0] for a, b in pairwise(ranges)), list(ranges)


def book(units: int, replicas: int, done: Sequence[tuple[int, int]] = ()) -> WorkBook[Holder]:
    work = WorkBook[Holder](done)
    work.holders.update((replica, Holder()) for replica in range(replicas))
    work.extend(units)
    return work


def leased(work: WorkBook[Holder], replica: int) -> tuple[Lease, ...]:
    return tuple(Lease(held.step, held.start, held.stop) for held in work.holders[replica].open.values())


def test_one_replica_has_all_units_in_order() -> None:
    work = book(10, 1)
    for most in (3, 4, 5):
        work.grant(0, most)
    assert leased(work, 0) == (Lease(0, 0, 10),), "ranges that follow one another are one"
    assert work.grant(0, 1) is None


def test_units_that_are_not_done_come_back_under_new_numbers() -> None:
    work = book(10, 2)
    work.grant(0, 4)
    work.grant(1, 3)
    work.complete(0, 1)
    assert work.give_back(0) == 3
    holder = work.holders[0]
    assert (holder.first_open, holder.next, holder.done) == (4, 4, 1)
    work.grant(1, 5)
    assert leased(work, 1) == (Lease(0, 4, 7), Lease(3, 1, 4)), "first what was given back"
    work.grant(0, 9)
    assert leased(work, 0) == (Lease(4, 7, 10),)
    work.complete(1, 4)
    assert (list(work.done), leased(work, 1)) == ([(0, 2), (4, 7)], (Lease(4, 2, 4),))
    work.validate()


def test_work_that_comes_later_leaves_out_what_is_done() -> None:
    work = book(4, 1, done=[(2, 3), (5, 9)])
    assert work.free == 3
    assert not book(0, 1, done=[(0, 4)]).extend(4)
    assert work.extend(10)
    work.grant(0, 10)
    work.grant(0, 10)
    work.grant(0, 10)
    assert leased(work, 0) == (Lease(0, 0, 2), Lease(2, 3, 5), Lease(4, 9, 10))
    work.validate()


def test_units_are_divided_and_taken_from_others_at_the_end() -> None:
    work = book(0, 3)
    work.extend(9, among=[0, 1])
    took = [work.next_unit(replica) for replica in (0, 0, 1, 2, 2)]
    assert [held.start for held in took if held is not None] == [0, 1, 4, 8, 7]
    work.release(0)
    assert [work.next_unit(1), work.next_unit(2)] != [None, None]
    assert [held.start for held in work.holders[2].open.values()] == [8, 7, 2]
    work.add(8)
    assert work.free == 2, "units that somebody has are not free"
    work.withdraw()
    assert work.next_unit(0) is None and work.free == 0
    backup = work.lease(0, 7, 8)
    assert backup.step == 2
    work.validate(once=False)


@given(
    st.integers(0, 30), st.integers(1, 4), st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=60)
)
def test_a_unit_is_lost_by_nobody(units: int, replicas: int, events: Sequence[tuple[int, bool]]) -> None:
    """Replicas take units and die, in any order: each unit is free or somebody's."""
    work = book(0, replicas)
    work.extend(units, among=list(range(replicas)))
    for replica, dies in events:
        if replica >= replicas:
            continue
        if dies:
            work.release(replica)
            work.give_back(replica)
        else:
            work.next_unit(replica)
        work.validate()
        assert all(work.is_free(unit) != work.has(unit) for unit in range(units))


ACTIONS = st.tuples(st.sampled_from(("grant", "complete", "leave")), st.integers(0, 2), st.integers(0, 9))


@given(st.integers(0, 40), st.sets(st.integers(0, 50)), st.lists(ACTIONS, max_size=60))
def test_each_unit_is_done_once_in_any_order(
    units: int, before: set[int], actions: Sequence[tuple[str, int, int]]
) -> None:
    """Leases, steps that are done and replicas that leave, against a plain model."""
    work = book(units, 3, done=[(unit, unit + 1) for unit in sorted(before) if unit < units])
    unit_of: list[dict[int, int]] = [{}, {}, {}]
    done = {unit for unit in before if unit < units}
    for action, replica, number in actions:
        if action == "grant":
            lease = work.grant(replica, number)
            for n in range(0 if lease is None else lease.stop - lease.start):
                assert lease is not None
                known = unit_of[replica].setdefault(lease.step + n, lease.start + n)
                assert known == lease.start + n, "a step keeps its unit"
        elif action == "complete":
            below = min(work.holders[replica].first_open + number, work.holders[replica].next)
            new = {
                unit
                for step, unit in unit_of[replica].items()
                if work.holders[replica].first_open <= step < below
            }
            assert not new & done
            done |= new
            work.complete(replica, below)
        else:
            work.give_back(replica)
            assert work.holders[replica].n_open == 0
        work.validate()
        assert {n for start, stop in work.done for n in range(start, stop)} == done
    while work.grant(0, 7) is not None:
        pass
    for replica in range(3):
        work.complete(replica, work.holders[replica].next)
    assert list(work.done) == ([(0, units)] if units else [])


@given(st.integers(0, 2**32), st.integers(1, 30))
def test_a_part_knows_its_units_whatever_it_misses(seed: int, units: int) -> None:
    """Orders that were lost, repeated or overtaken: a part never has a wrong unit, and in the end all."""
    work, part, random = book(units, 2), LeasedSteps(), Random(seed)
    sent: list[tuple[tuple[Lease, ...], int, bool]] = []
    expected: dict[int, int] = {}
    step = 0
    while work.free or not sent:
        for replica in random.sample((0, 1), 2):
            work.grant(replica, random.randint(0, 4))
        for lease in leased(work, 0):
            expected |= {lease.step + n: lease.start + n for n in range(lease.stop - lease.start)}
        sent.append((leased(work, 0), work.holders[0].next, not work.free))
        for leases, stop, is_last in random.choices(sent, k=random.randint(0, 3)):
            before = part.stop
            part.take(leases, stop, is_last=is_last)
            assert part.stop >= before
        while step < part.stop and random.random() < 0.5:
            assert part.unit(step) == expected[step]
            step += 1
        work.complete(0, random.randint(0, step))
    leases, stop, is_last = sent[-1]
    part.take(leases, stop, is_last=is_last)
    assert (part.stop, part.is_last) == (len(expected), True)
    assert [part.unit(n) for n in range(step, part.stop)] == [expected[n] for n in range(step, part.stop)]
    assert not part.take(leases, stop, is_last=is_last), "a repeat"
