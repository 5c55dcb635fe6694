"""Orders of examples: every one once in an epoch, from the seed alone, and none of them in memory."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from partita.engine.data import order
from partita.engine.data.counted import Permutation
from partita.engine.data.draws import Draws
from partita.engine.data.order import Ordering
from partita.engine.runtime.feed import Sampler


def seeds(epoch: int) -> list[int]:
    return [7, epoch]


@given(n=st.integers(1, 700), key=st.integers(0, 99))
def test_a_counted_permutation_has_every_number_once(n: int, key: int) -> None:
    found = Permutation(n, key)
    whole = found.at(np.arange(n))
    assert sorted(whole) == [*range(n)]
    places = np.random.default_rng(key).integers(0, n, 20)
    np.testing.assert_array_equal(found.at(places), whole[places])


def test_counted_permutations_mix_well() -> None:
    """Neighbours lie apart, and no place prefers a number: chi-squared of 64 cells over 200 keys."""
    n = 10**9
    found = Permutation(n, 3).at(np.arange(100_000))
    assert abs(np.corrcoef(found[:-1], found[1:])[0, 1]) < 0.02
    counts = np.bincount(found * 64 // n, minlength=64)
    assert ((counts - 1562.5) ** 2 / 1562.5).sum() < 120  # 63 degrees of freedom: beyond once in 50,000
    firsts = np.array([Permutation(64, key).at(np.arange(1))[0] for key in range(1000)])
    counts = np.bincount(firsts, minlength=64)
    assert ((counts - 15.625) ** 2 / 15.625).sum() < 120


@given(
    blocks=st.lists(st.integers(0, 9), min_size=1, max_size=8).filter(sum),
    window=st.integers(1, 30),
    seekable=st.booleans(),
)
def test_windows_have_every_example_once(blocks: list[int], window: int, seekable: bool) -> None:
    examples, settings_ = sum(blocks), Ordering(window=window, blocks=tuple(blocks), seekable=seekable)
    found = settings_.of(examples, seeds)
    whole = found.at(0, 0, examples)
    assert sorted(whole) == [*range(examples)]
    for start, stop in ((0, 3), (examples // 2, examples), (examples // 3, examples // 2)):
        np.testing.assert_array_equal(found.at(0, start, stop), whole[start:stop])
    if not seekable:  # a stream: what a window has lies in it
        assert max(abs(whole - np.arange(examples))) < window


def test_an_order_of_any_number_of_examples_takes_no_memory() -> None:
    sampler = Sampler(examples=10**9, batch=32, seed=3)
    first, again = sampler.indices(31_000_000), Sampler(examples=10**9, batch=32, seed=3).indices(31_000_000)
    np.testing.assert_array_equal(first, again)
    assert len(set(first)) == 32 and first.max() < 10**9
    assert not np.array_equal(sampler.indices(0), sampler.indices(sampler.units_per_epoch))
    np.testing.assert_array_equal(Ordering(shuffled=False).of(9, seeds).at(4, 3, 20), np.arange(3, 9))
    assert order.DRAWN_EXAMPLES < 10**9


def test_draws_follow_the_example_and_nothing_else() -> None:
    numbers = np.array([5, 900, 3])
    draws, swapped = Draws(1, 2, numbers), Draws(1, 2, numbers[::-1])
    np.testing.assert_array_equal(draws.uniform("a"), swapped.uniform("a")[::-1])
    np.testing.assert_array_equal(draws.generator(1).random(3), swapped.generator(1).random(3))
    others = (Draws(1, 3, numbers).uniform("a"), Draws(2, 2, numbers).uniform("a"), draws.uniform("b"))
    assert not any((draws.uniform("a") == other).any() for other in others)
    many = Draws(1, 0, np.arange(40_000)).uniform()
    assert abs(many.mean() - 0.5) < 0.01 and abs(many.var() - 1 / 12) < 0.003
    assert set(Draws(1, 0, np.arange(100)).integers(3)) == {0, 1, 2}
