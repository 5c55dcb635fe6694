"""A computation that does not end is noticed, whatever the clock does meanwhile, and named."""

from __future__ import annotations

import threading

import pytest

from partita.engine.runtime.task import NeverEnds
from partita.engine.runtime.watchdog import Watchdog


def test_only_one_that_goes_on_and_on_is_stuck() -> None:
    watchdog = Watchdog("instruction {}".format)
    watchdog.check(0.0, 3.0)
    for n in range(10):  # each is another computation
        watchdog.begin(7)
        watchdog.check(0.9 * n, 3.0)
        watchdog.end()
    watchdog.begin(8)
    for n in range(3):
        watchdog.check(9.0 + n, 3.0)
    with pytest.raises(NeverEnds, match="instruction 8 has not ended for 3 s") as caught:
        watchdog.check(12.0, 3.0)
    assert "test_only_one_that_goes_on_and_on_is_stuck" in caught.value.stack


def test_time_in_which_the_host_stood_still_counts_little() -> None:
    watchdog = Watchdog("instruction {}".format)
    watchdog.begin(1)
    watchdog.check(0.0, 3.0)
    watchdog.check(1000.0, 3.0)
    watchdog.check(2000.0, 3.0)
    with pytest.raises(NeverEnds):
        watchdog.check(2001.0, 3.0)


def test_each_thread_has_its_own() -> None:
    watchdog, may_end, has_begun = Watchdog("instruction {}".format), threading.Event(), threading.Event()

    def compute() -> None:
        watchdog.begin(4)
        has_begun.set()
        may_end.wait()
        watchdog.end()

    thread = threading.Thread(target=compute)
    thread.start()
    has_begun.wait()
    for now in (0.0, 1.0):
        watchdog.begin(5)
        watchdog.check(now, 2.0)
        watchdog.end()
    with pytest.raises(NeverEnds) as caught:
        watchdog.check(2.0, 2.0)
    assert caught.value.reason.startswith("instruction 4 has not ended")
    assert "compute" in caught.value.stack
    may_end.set()
    thread.join()
    watchdog.check(3.0, 2.0)
