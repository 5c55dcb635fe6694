"""The examples of a replica, and their node-major rows."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from partita.engine.runtime.feed import DatasetFeed, Examples, Sampler, node_major
from partita.layers import Box


@given(
    examples=st.integers(1, 200),
    batch=st.integers(1, 20),
    minibatches=st.integers(1, 3),
    seed=st.integers(0, 9),
)
def test_an_epoch_shows_each_example_once(examples: int, batch: int, minibatches: int, seed: int) -> None:
    sampler = Sampler(examples=examples, batch=batch, minibatches=minibatches, seed=seed)
    units, full = sampler.units_per_epoch, batch * minibatches
    for epoch in range(2):
        shown = [sampler.indices(epoch * units + unit) for unit in range(units)]
        assert sorted(np.concatenate(shown)) == [*range(examples)]
        assert [len(indices) for indices in shown[:-1]] == [full] * (units - 1)
        assert 1 <= len(shown[-1]) <= full, "no unit is empty"


def test_the_order_of_examples_is_kept_from_version_to_version() -> None:
    """A run of one replica has the same examples in the same steps as ever: resumed runs rely on it."""
    shuffled = np.random.default_rng([3, 0]).permutation(50)
    for epoch in (0, 2):
        order = np.random.default_rng([3, 1, 0, epoch]).permutation(shuffled)
        for step in range(13):
            found = Sampler(examples=50, batch=4, seed=3).indices(13 * epoch + step)
            np.testing.assert_array_equal(found, order[4 * step : 4 * step + 4])


def test_a_sampler_that_starts_in_the_middle_shows_the_same() -> None:
    first, second = (Sampler(examples=50, batch=4, seed=3) for _ in range(2))
    shown = [first.indices(step) for step in range(30)]
    for step in (13, 2, 29):
        np.testing.assert_array_equal(second.indices(step), shown[step])
    assert not np.array_equal(shown[0], shown[first.units_per_epoch])  # another order in the next epoch


def test_a_step_of_several_minibatches_shows_them_one_after_another() -> None:
    one, three = (Sampler(examples=50, batch=4, minibatches=n, seed=3) for n in (1, 3))
    assert (one.units_per_epoch, three.units_per_epoch) == (13, 5)
    expected = np.concatenate([one.indices(step) for step in range(13)])
    np.testing.assert_array_equal(np.concatenate([three.indices(step) for step in range(5)]), expected)


def test_rows_are_transposed_to_node_major() -> None:
    batch = np.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5)
    turned = node_major(batch, Box.of_rows(1, 3), (2, 4, 5, 2))
    assert turned.shape == (2, 4, 5, 2)
    assert turned[0, 2, 3, 1] == batch[1, 1, 2, 3]
    labels = node_major(np.array([7, 8, 9]), Box.of_rows(0, 1), (1, 3))
    np.testing.assert_array_equal(labels, [[7, 8, 9]])


def test_a_dataset_feed_fills_the_examples_of_its_step() -> None:
    images = np.random.default_rng(0).normal(size=(12, 3, 2))
    sampler = Sampler(examples=12, batch=4, seed=0)
    feed = DatasetFeed(Examples({"image": images}), sampler)
    feed.choose(2)
    out = np.empty((2, 2, 4))
    feed.fill("image", Box.of_rows(1, 3), out)
    chosen = images[sampler.indices(2)]
    np.testing.assert_array_equal(out, np.moveaxis(chosen[:, 1:3], 0, -1))
    assert feed.count == 4


def test_a_step_that_is_not_full_is_filled_up_with_its_own_examples() -> None:
    labels = np.arange(10)
    sampler = Sampler(examples=10, batch=4, seed=0)
    feed = DatasetFeed(Examples({"label": labels}), sampler)
    feed.choose(2)
    assert feed.count == 2
    out = np.empty((1, 4), np.int64)
    feed.fill("label", Box.of_rows(0, 1), out)
    np.testing.assert_array_equal(out[0], np.resize(sampler.indices(2), 4))
