"""The joined batches of all replicas: any number of replicas sees each example once in an epoch."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from partita.engine.protocol.views import JoinedBatches
from partita.engine.runtime.feed import Examples
from partita.engine.runtime.joint_sampler import JointFeed, JointSampler
from partita.layers.box import Box

SIZES = st.integers(1, 120), st.integers(1, 20), st.integers(0, 9)


@given(*SIZES, st.integers(1, 5))
def test_an_epoch_shows_each_example_once(examples: int, batch: int, seed: int, replicas: int) -> None:
    sampler = JointSampler(JoinedBatches(examples, batch), seed=seed)
    steps = sampler.batches.steps(0, examples, replicas)
    for epoch in range(2):
        positions = [sampler.batches.position(0, epoch * steps + step, replicas) for step in range(steps)]
        shown = [
            sampler.indices(position, rank=rank, replicas=replicas)
            for position in positions
            for rank in range(replicas)
        ]
        assert sorted(np.concatenate(shown)) == [*range(examples)]
        assert sum(sampler.total(position, replicas) for position in positions) == examples
        assert min(sampler.total(position, replicas) for position in positions) > 0


@given(*SIZES, st.integers(1, 5), st.integers(0, 40))
def test_the_shares_of_a_step_are_the_batch_of_one_larger_replica(
    examples: int, batch: int, seed: int, replicas: int, step: int
) -> None:
    small = JointSampler(JoinedBatches(examples, batch), seed=seed)
    large = JointSampler(JoinedBatches(examples, batch * replicas), seed=seed)
    position = small.batches.position(0, step, replicas)
    assert position == large.batches.position(0, step, 1)
    shares = [small.indices(position, rank=rank, replicas=replicas) for rank in range(replicas)]
    np.testing.assert_array_equal(np.concatenate(shares), large.indices(position, rank=0, replicas=1))
    counts = [len(share) for share in shares]
    assert counts == sorted(counts, reverse=True)


@given(*SIZES, st.lists(st.integers(1, 5), min_size=1, max_size=30))
def test_replicas_may_come_and_go_and_no_example_is_left_out(
    examples: int, batch: int, seed: int, replicas: list[int]
) -> None:
    sampler, position = JointSampler(JoinedBatches(examples, batch), seed=seed), 0
    shown: list[int] = []
    for present in replicas:
        for rank in range(present):
            shown += sampler.indices(position, rank=rank, replicas=present).tolist()
        position += sampler.total(position, present)
    assert len(shown) == position
    for epoch in range(position // examples):
        assert sorted(shown[epoch * examples : (epoch + 1) * examples]) == [*range(examples)]


def test_a_sampler_that_starts_in_the_middle_shows_the_same() -> None:
    first, second = (JointSampler(JoinedBatches(50, 4), seed=3) for _ in range(2))
    positions = [first.batches.position(0, step, 3) for step in range(15)]
    shown = [first.indices(position, rank=1, replicas=3) for position in positions]
    for step in (13, 2, 14):
        np.testing.assert_array_equal(second.indices(positions[step], rank=1, replicas=3), shown[step])
    assert not np.array_equal(shown[0], shown[5])  # another order in the next epoch


def test_a_feed_shows_a_share_and_its_gradient_is_a_part_of_the_mean_over_all() -> None:
    data = {"picture": np.arange(10, dtype=np.float32).reshape(10, 1)}
    sampler = JointSampler(JoinedBatches(10, 4), seed=1)
    feed, out = JointFeed(Examples(data), sampler, batch=4), np.zeros((1, 4), np.float32)
    order = sampler.indices(0, rank=0, replicas=1).tolist() + sampler.indices(4, rank=0, replicas=1).tolist()
    feed.choose(0, rank=1, replicas=2)
    feed.fill("picture", Box(((0, 1),)), out)
    assert (feed.count, feed.mean_over, out[0].tolist()) == (4, 8, order[4:8])
    feed.choose(8, rank=0, replicas=2)
    assert (feed.count, feed.mean_over) == (2, 2)
    feed.choose(8, rank=1, replicas=2)
    feed.fill("picture", Box(((0, 1),)), out)
    assert (feed.count, feed.mean_over) == (0, 2)
