"""The tree of sums: the same additions in any order of arrival, and few of them waiting."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.engine.protocol.sum_tree import SumTree

arrivals = st.integers(1, 70).flatmap(lambda n: st.permutations(range(n)))


def recursive(level: int, i: int, leaves: list[float]) -> float:
    """Returns node (level, i) by its definition."""
    if level == 0:
        return leaves[i]
    left = recursive(level - 1, 2 * i, leaves)
    has_right = (2 * i + 1) << (level - 1) < len(leaves)
    return left + recursive(level - 1, 2 * i + 1, leaves) if has_right else left


def added(order: list[int], leaves: list[float]) -> float:
    """Carries out the sums. Nothing missing is read, and nothing is overwritten."""
    tree, places = SumTree(len(leaves)), dict[int, float]()
    for leaf in order:
        assert not tree.has(leaf)
        assert leaf not in places
        places[leaf] = leaves[leaf]
        for into, of in tree.add(leaf):
            places[into] += places.pop(of)
        tree.validate()
        assert tree.has(leaf)
    assert (tree.missing, list(places)) == (0, [0])
    return places[0]


@given(arrivals, st.integers(0, 2**32 - 1))
def test_the_bits_of_a_sum_do_not_depend_on_the_order_of_arrival(order: list[int], seed: int) -> None:
    numbers = np.random.default_rng(seed).normal(size=len(order)) * 10.0 ** np.arange(len(order)) % 1e9
    leaves: list[float] = numbers.tolist()
    height = math.ceil(math.log2(len(leaves)))
    assert added(order, leaves) == recursive(height, 0, leaves)


@pytest.mark.parametrize("n", [1, 2, 3, 64, 100, 1000])
def test_few_sums_wait_while_one_leaf_is_missing(n: int) -> None:
    levels = n.bit_length() + 1
    for missing in {0, n // 3, n - 1}:
        tree = SumTree(n)
        order = [leaf for leaf in range(n) if leaf != missing]
        random.Random(n).shuffle(order)
        sums = sum(len(tree.add(leaf)) for leaf in order)
        assert tree.missing == 1
        assert len(order) - sums <= levels
    ascending, waiting = SumTree(n), 0
    for leaf in range(n):
        waiting += 1 - len(ascending.add(leaf))
        assert waiting <= levels


def test_one_leaf_is_its_own_sum() -> None:
    tree = SumTree(1)
    assert tree.add(0) == []
    assert tree.has(0) and not tree.missing


def test_a_leaf_comes_once() -> None:
    tree = SumTree(3)
    tree.add(1)
    with pytest.raises(AssertionError):
        tree.add(1)
