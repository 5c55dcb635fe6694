"""The division of data among clients: each example is one client's, and the order follows from the seed."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.engine.data.clients import Clients

SEEDS = st.integers(0, 1 << 16)


@given(st.integers(1, 12), st.integers(0, 3), st.sampled_from([0.0, 0.5, 2.0]), st.integers(0, 60), SEEDS)
def test_each_example_is_one_clients(count: int, labels: int, spread: float, more: int, seed: int) -> None:
    clients = Clients(count, labels, spread)
    examples = clients.pieces + more
    of_example = np.random.default_rng(seed).integers(0, 10, examples)
    division, sizes = clients.divided(examples, seed, of_example), clients.sizes(examples, seed)
    held = [division.of(client) for client in range(count)]
    assert [len(own) for own in held] == sizes.tolist() and sizes.min() >= 1
    assert sorted(np.concatenate(held)) == [*range(examples)]


@given(st.integers(1, 9), SEEDS)
def test_without_a_spread_all_have_equally_many(count: int, seed: int) -> None:
    sizes = Clients(count).sizes(count * 7, seed)
    assert sizes.tolist() == [7] * count


def test_a_client_of_two_shards_sees_few_labels() -> None:
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 40))
    by_label, any_label = (Clients(20, shards).divided(400, 5, labels) for shards in (2, 0))
    seen = [len(set(labels[by_label.of(client)])) for client in range(20)]
    assert max(seen) <= 4 and np.mean(seen) < 2.5
    assert min(len(set(labels[any_label.of(client)])) for client in range(20)) > 5


def test_a_spread_makes_clients_of_very_different_sizes() -> None:
    sizes = Clients(50, spread=1.5).sizes(5000, 3)
    assert sizes.sum() == 5000 and sizes.max() > 20 * sizes.min()


def test_each_pass_is_another_order_of_the_clients_own() -> None:
    division = pickle.loads(pickle.dumps(Clients(4).divided(40, 7)))
    passes = [division.at(step, 2, visit, 0, 10) for step in range(2) for visit in range(2)]
    for one in passes:
        assert sorted(one) == sorted(division.of(2))
    assert len({tuple(one) for one in passes}) == 4
    np.testing.assert_array_equal(division.at(1, 2, 1, 4, 8), passes[3][4:8])
    assert len(division.at(1, 2, 1, 8, 12)) == 2


@pytest.mark.parametrize(
    ("given_", "sentence"),
    [
        ({"count": 0}, "Clients' count is 0"),
        ({"labels": -1}, "Clients' labels is -1"),
        ({"spread": -0.5}, "give 0, or a number above"),
    ],
)
def test_a_setting_out_of_range_is_one_sentence(given_: dict[str, float], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Clients(**given_)  # type: ignore[arg-type]


def test_too_few_examples_are_one_sentence() -> None:
    with pytest.raises(ValueError, match="needs 20 shards of the data, and it has 19 examples; use fewer"):
        Clients(10, labels=2).sizes(19, 0)
