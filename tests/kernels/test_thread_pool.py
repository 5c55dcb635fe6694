"""A team covers the rows, ends when one of it fails, and leaves no thread."""

from __future__ import annotations

import threading

import pytest

from partita.engine.kernels import ThreadPool
from partita.partitioner.cluster.threads import ThreadShares


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("rows", [(0, 0), (3, 4), (2, 13)])
def test_covers_every_row_once(threads: int, rows: tuple[int, int]) -> None:
    done: list[tuple[int, int]] = []
    pool = ThreadPool(threads)
    pool.split(*rows, lambda start, stop: done.append((start, stop)))
    pool.close()
    assert sorted(row for run in done for row in range(*run)) == list(range(*rows))
    assert len(done) == min(threads, rows[1] - rows[0])


def test_its_threads_work_at_the_same_time() -> None:
    meeting = threading.Barrier(3, timeout=30)
    pool = ThreadPool(3)
    pool.split(0, 3, lambda start, stop: meeting.wait() and None)
    pool.close()


@pytest.mark.parametrize(("operations", "runs"), [(10.0, 1), (199.0, 1), (200.0, 2), (1e9, 3)])
def test_wakes_only_as_many_threads_as_have_enough_to_do(operations: float, runs: int) -> None:
    done: list[tuple[int, int]] = []
    pool = ThreadPool(3, shares=ThreadShares(loop=100))
    pool.split(0, 8, lambda start, stop: done.append((start, stop)), operations=operations)
    pool.close()
    assert len(done) == runs


@pytest.mark.parametrize("failing", [0, 2])
def test_raises_what_a_run_raised_after_all_have_ended(failing: int) -> None:
    done: list[int] = []

    def work(start: int, stop: int) -> None:
        if start == failing:
            raise ZeroDivisionError(start)
        done.append(start)

    pool = ThreadPool(3)
    with pytest.raises(ZeroDivisionError, match=str(failing)):
        pool.split(0, 3, work)
    assert sorted(done) == [row for row in range(3) if row != failing]
    pool.close()


def test_forgotten_teams_leave_no_thread() -> None:
    ThreadPool(2).split(0, 2, lambda start, stop: None)  # what a test leaves behind, its fixture finds
