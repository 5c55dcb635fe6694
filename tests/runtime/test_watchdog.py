"""A computation that does not end is noticed, whatever the clock does meanwhile, and named."""

from __future__ import annotations

import threading

import pytest

from partita.engine.runtime.watchdog import Overdue, Watchdog


def test_only_one_that_goes_on_and_on_is_stuck() -> None:
    underway = Watchdog()
    underway.check(0.0, 3.0)
    for n in range(10):  # each is another computation
        underway.begin(7)
        underway.check(0.9 * n, 3.0)
        underway.end()
    underway.begin(8)
    for n in range(3):
        underway.check(9.0 + n, 3.0)
    with pytest.raises(Overdue, match="instruction 8 has not ended for 3 s") as caught:
        underway.check(12.0, 3.0)
    assert caught.value.position == 8
    assert "test_only_one_that_goes_on_and_on_is_stuck" in caught.value.stack


def test_time_in_which_the_host_stood_still_counts_little() -> None:
    underway = Watchdog()
    underway.begin(1)
    underway.check(0.0, 3.0)
    underway.check(1000.0, 3.0)
    underway.check(2000.0, 3.0)
    with pytest.raises(Overdue):
        underway.check(2001.0, 3.0)


def test_each_thread_has_its_own() -> None:
    underway, may_end, has_begun = Watchdog(), threading.Event(), threading.Event()

    def compute() -> None:
        underway.begin(4)
        has_begun.set()
        may_end.wait()
        underway.end()

    thread = threading.Thread(target=compute)
    thread.start()
    has_begun.wait()
    for now in (0.0, 1.0):
        underway.begin(5)
        underway.check(now, 2.0)
        underway.end()
    with pytest.raises(Overdue) as caught:
        underway.check(2.0, 2.0)
    assert caught.value.position == 4
    assert "compute" in caught.value.stack
    may_end.set()
    thread.join()
    underway.check(3.0, 2.0)
