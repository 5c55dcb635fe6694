"""Products by tiles: against float64, as matrices lie in memory, and the same bits however they are split."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from partita.engine.kernels import Array, ThreadPool
from partita.engine.kernels.products.tiles import padded_stride, product
from partita.engine.kernels.tiles.scratch import Scratch
from partita.partitioner.cluster.threads import ThreadShares
from tests.draws import examples
from tests.kernels.matrices import matrix
from tests.properties.products import assert_product

PRECISIONS = ["float32", "float64"]
TEAM = ThreadPool(1)
sizes = st.one_of(st.integers(1, 20), st.integers(90, 110))
terms = st.one_of(st.integers(1, 20), st.sampled_from([128, 255, 256, 257, 511, 512, 513, 600]))
layouts = st.tuples(st.booleans(), st.booleans())


def factors(
    shape: tuple[int, int, int], transposed: tuple[bool, bool], precision: str, *, margin: int = 0
) -> tuple[Array, Array]:
    """`[m, k]` and `[k, n]`; those of a margin are blocks of columns of a wider matrix."""
    m, k, n = shape
    a = matrix(m, k, precision, transposed=transposed[0], margin=margin, seed=1)
    return a, matrix(k, n, precision, transposed=transposed[1], margin=margin, seed=2)


@settings(max_examples=examples(24))
@given(st.tuples(sizes, terms, sizes), layouts, st.integers(0, 3), st.sampled_from(PRECISIONS))
@example((97, 513, 49), (True, True), 5, "float32")
@example((193, 257, 33), (True, False), 0, "float64")
def test_equals_float64_however_the_factors_lie(
    shape: tuple[int, int, int], transposed: tuple[bool, bool], margin: int, precision: str
) -> None:
    a, b = factors(shape, transposed, precision, margin=margin)
    whole, by_flat = (np.full((shape[0] + 2, shape[2]), 7, precision) for _ in range(2))
    product(a, b, whole[1:-1], pool=TEAM)()
    assert_product(a, b, whole[1:-1], precision)
    np.testing.assert_array_equal(whole[[0, -1]], 7)
    product(a, b, by_flat[1:-1], pool=TEAM, flat=True)()
    assert by_flat.tobytes() == whole.tobytes()


@settings(max_examples=examples(12))
@given(st.tuples(sizes, terms, sizes), st.integers(2, 5), st.sampled_from(PRECISIONS))
def test_neither_layout_nor_threads_nor_cuts_show_in_the_bits(
    shape: tuple[int, int, int], threads: int, precision: str
) -> None:
    m, _, n = shape
    a, b = factors(shape, (False, False), precision)
    expected = np.zeros((m, n), precision)
    product(a, b, expected, pool=TEAM)()
    in_columns = [np.ascontiguousarray(one.T).T for one in (a, b)]
    pool = ThreadPool(threads, shares=ThreadShares(loop=0))
    try:
        for left in (a, in_columns[0]):
            for right in (b, in_columns[1]):
                out = np.full((m, n), 7, precision)
                product(left, right, out, pool=pool)()
                np.testing.assert_array_equal(out, expected)
    finally:
        pool.close()
    out = np.zeros((m - m // 3, n - n // 2), precision)
    product(a[m // 3 :], b[:, n // 2 :], out, pool=TEAM)()
    np.testing.assert_array_equal(out, expected[m // 3 :, n // 2 :])


@pytest.mark.parametrize("transposed", [False, True])
def test_added_products_are_the_chain_of_all_terms(transposed: bool) -> None:
    """A gradient has the same bits whether its examples come at once or in portions."""
    a, b = factors((61, 96, 83), (False, transposed), "float32")
    whole, out = np.zeros((61, 83), np.float32), np.full((61, 83), 7, np.float32)
    product(a, b, whole, pool=TEAM)()
    for n in range(3):
        terms = slice(32 * n, 32 * n + 32)
        product(a[:, terms], b[terms], out, pool=TEAM, accumulate=n > 0)()
    np.testing.assert_array_equal(out, whole)


def test_an_element_is_a_chain_in_ascending_order() -> None:
    a = np.ones((3, 700), np.float32)
    a[:, 0], a[:, -1] = 2.0**24, -(2.0**24)
    out = np.zeros((3, 5), np.float32)
    product(a, np.ones((700, 5), np.float32), out, pool=TEAM)()
    np.testing.assert_array_equal(out, 0)  # every one of the others is lost to the first


def test_products_share_a_scratch_and_read_what_the_arrays_hold_by_then() -> None:
    scratch, calls = Scratch(1, np.dtype("f")), []
    for size in (40, 90, 17):
        a, b = factors((size, 30, size + 1), (False, True), "float32")
        out = np.zeros((size, size + 1), np.float32)
        calls.append((product(a, b, out, pool=TEAM, scratch=scratch), a, b, out))
    for factor in (1, 2):
        for call, a, b, out in calls:
            b *= np.float32(factor)
            call()
            assert_product(a, b, out, "float32")


def test_a_sum_of_nothing_is_zero() -> None:
    out = np.full((3, 4), 7, np.float32)
    product(np.zeros((3, 0), np.float32), np.zeros((0, 4), np.float32), out, pool=TEAM)()
    np.testing.assert_array_equal(out, 0)


@pytest.mark.parametrize("item_bytes", [4, 8])
def test_transposed_rows_lie_an_odd_number_of_lines_apart(item_bytes: int) -> None:
    for lanes in (1, 16, 17, 32, 2560):
        found = padded_stride(lanes, item_bytes)
        assert found >= lanes
        assert (found * item_bytes / 64) % 2 == 1
        assert found - lanes < math.ceil(128 / item_bytes)
