"""The least work of a thread: what is chosen by the clock, and that what decides bits stays."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import numpy as np
import pytest

from partita.engine.kernels import Array, ThreadPool
from partita.engine.profile import threads as measured
from partita.engine.profile.threads import least_share, measure_shares
from partita.partitioner.cluster.threads import NEVER, ThreadShares

SMALL = ThreadShares(product=3e4, bfloat16=3e4, gradient=3e4, loop=4e3, numbers=1e3)


class Clock:
    """Seconds that pass only while a call is made."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1e-9
        return self.now

    def taking(self, seconds: float) -> Callable[[], None]:
        def call() -> None:
            self.now += seconds

        return call


@pytest.mark.parametrize(
    ("together", "least"),
    [
        ((2.0, 2.0, 2.0, 2.0), NEVER),
        ((0.5, 0.5, 0.5, 0.5), 1.0),
        ((2.0, 0.96, 0.9, 0.6), 4.0),  # 4% are less than the margin
        ((0.6, 1.1, 0.6, 0.6), 4.0),  # from there on, and not only there
        ((0.6, 0.6, 0.6, 1.0), NEVER),
    ],
)
def test_a_share_is_worth_a_thread_if_all_larger_ones_are(together: tuple[float, ...], least: float) -> None:
    clock = Clock()
    pairs = [
        measured._Pair(2.0**n, clock.taking(1e-3), clock.taking(1e-3 * ratio))
        for n, ratio in enumerate(together)
    ]
    assert least_share(pairs, clock=clock) == least


def test_rounds_that_are_far_apart_mean_nothing() -> None:
    clock, calls = Clock(), [0]

    def disturbed() -> None:
        calls[0] += 1
        clock.now += 1e-3 if clock.now < 0.02 else 2e-3

    assert least_share([measured._Pair(1.0, disturbed, clock.taking(1e-4))], clock=clock) is None


def test_every_kind_is_measured_but_what_decides_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "ROUNDS", 1)
    monkeypatch.setattr(measured, "ROUND_S", 0.0)
    found = measure_shares(SMALL, "torch", threads=2, source="here, today")
    assert found is not None
    assert (found.layer, found.source) == (SMALL.layer, "here, today")
    for kind in ("product", "bfloat16", "gradient", "loop", "numbers"):
        least, usual = getattr(found, kind), getattr(SMALL, kind)
        assert least == NEVER or usual / 8 <= least <= usual * 4


def test_the_same_is_computed_on_one_thread_and_on_several() -> None:
    with closing(ThreadPool(3, shares=ThreadShares(loop=0))) as pool:
        numbers = np.arange(30, dtype="f").reshape(3, 10)
        seen: list[Array] = []
        pair = measured._shared(
            1.0, lambda: numbers.fill(2), lambda a, b: measured._smooth(numbers[a:b].reshape(-1)), pool
        )
        for call in (pair.alone, pair.together):
            call()
            seen.append(numbers.copy())
    np.testing.assert_array_equal(*seen)
    assert (seen[0] != 2).any()
