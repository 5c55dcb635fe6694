"""Prepared products: against float64, as matrices lie in memory, by any library."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from partita.engine.kernels import Array, Team
from partita.engine.kernels.products import calibration
from partita.engine.kernels.products.product import product
from partita.engine.numerics import master, narrow_array, storage, widen_array

PRECISIONS = ["float32", "float64", "bfloat16"]
ROUNDING = {"float32": 2.0**-24, "float64": 2.0**-53, "bfloat16": 2.0**-8}
TEAM = Team(1)
sizes = st.one_of(st.integers(1, 4), st.integers(1, 40))


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def stored(numbers: Array, precision: str) -> Array:
    return narrow_array(numbers.astype(master(precision)), np.zeros(numbers.shape, storage(precision)))


def matrix(
    rows: int, columns: int, precision: str, *, transposed: bool = False, margin: int = 0, seed: int = 0
) -> Array:
    """A view of normal numbers, in rows or in columns, that may lie apart."""
    lying = (columns, rows + margin) if transposed else (rows, columns + margin)
    whole = stored(np.random.default_rng(seed).normal(size=lying), precision)
    return whole.T[:rows] if transposed else whole[:, :columns]


def wide(numbers: Array) -> Array:
    return widen_array(np.ascontiguousarray(numbers)).astype(np.float64)


def assert_product(a: Array, b: Array, out: Array, precision: str, *, roundings: int = 1) -> None:
    """Within the rounding of the result and that of the sums; of results in between too, if there are any."""
    expected, sums = wide(a) @ wide(b), np.abs(wide(a)) @ np.abs(wide(b))
    of_sums = 2.0**-53 if precision == "float64" else 2.0**-24
    allowed = ROUNDING[precision] * np.abs(expected) + (a.shape[1] + 1) * of_sums * sums
    allowed += (roundings - 1) * ROUNDING[precision] * sums
    assert (np.abs(wide(out) - expected) <= allowed).all()


@given(
    st.tuples(sizes, sizes, sizes),
    st.tuples(st.booleans(), st.booleans()),
    st.tuples(st.integers(0, 3), st.integers(0, 3)),
    st.sampled_from(PRECISIONS),
    st.integers(0, 99),
)
def test_equals_float64_however_the_factors_lie(
    shape: tuple[int, int, int],
    transposed: tuple[bool, bool],
    margins: tuple[int, int],
    precision: str,
    seed: int,
) -> None:
    m, k, n = shape
    a = matrix(m, k, precision, transposed=transposed[0], margin=margins[0], seed=seed)
    b = matrix(k, n, precision, transposed=transposed[1], margin=margins[1], seed=seed + 1)
    whole = stored(np.full((m + 2, n), 7.0), precision)
    product(a, b, whole[1:-1], team=TEAM)()
    assert_product(a, b, whole[1:-1], precision)
    np.testing.assert_array_equal(widen_array(whole[[0, -1]]), 7)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_call_reads_what_the_arrays_hold_by_then(precision: str) -> None:
    a, b = matrix(5, 4, precision), matrix(4, 3, precision)
    out = stored(np.zeros((5, 3)), precision)
    call = product(a, b, out, team=TEAM)
    for seed in (1, 2):
        a[...] = matrix(5, 4, precision, seed=seed)
        call()
        assert_product(a, b, out, precision)


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("transposed", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("library", ["numpy", "torch", "tiles"])
def test_every_library_computes_large_products(
    library: str, transposed: tuple[bool, bool], precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "choose", lambda shape, measure: library)
    a = matrix(120, 130, precision, transposed=transposed[0], margin=3)
    b = matrix(130, 110, precision, transposed=transposed[1])
    out = np.zeros((120, 110), storage(precision))
    call = product(a, b, out, team=TEAM)
    assert (isinstance(call, partial) and call.func is np.matmul) == (library == "numpy")
    call()
    assert_product(a, b, out, precision)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("library", ["numpy", "torch", "tiles"])
def test_every_library_adds_products(library: str, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two halves of the terms, one after the other, are the whole product: as batches come in portions."""
    monkeypatch.setattr(calibration, "choose", lambda shape, measure: library)
    a = matrix(120, 260, precision, margin=3)
    b = matrix(260, 110, precision, transposed=True)
    out = stored(np.zeros((120, 110)), precision)
    for begin, accumulate in ((0, False), (130, True)):
        terms = slice(begin, begin + 130)
        product(a[:, terms], b[terms], out, team=TEAM, accumulate=accumulate)()
    allowed = 2 if precision == "bfloat16" else 1  # which is rounded once for each half
    assert_product(a, b, out, precision, roundings=allowed)


def test_a_large_product_is_measured_and_the_quicker_library_taken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    a, b, out = (
        matrix(150, 160, "float32", transposed=True),
        matrix(160, 170, "float32"),
        np.zeros((150, 170), "f"),
    )
    calls = [product(a, b, out, team=TEAM) for _ in range(2)]
    for call in calls:
        out[...] = 0
        call()
        assert_product(a, b, out, "float32")
    (found,) = calibration.measured()
    shape = found.product
    assert (shape.m, shape.k, shape.n, shape.layout) == (150, 160, 170, "TN")
    assert (shape.precision, shape.threads) == ("float32", 1)
    assert set(found.seconds) == {"numpy", "torch", "tiles"} and min(found.seconds.values()) > 0
    assert found.seconds[found.chosen] <= found.seconds["numpy"]


def test_torch_uses_the_threads_that_were_given_on_every_thread_that_calls() -> None:
    out = stored(np.zeros((64, 64)), "bfloat16")
    call = product(matrix(64, 64, "bfloat16"), matrix(64, 64, "bfloat16"), out, team=TEAM)
    found: list[int] = []
    torch.set_num_threads(2)

    def play() -> None:
        call()
        found.append(torch.get_num_threads())

    thread = threading.Thread(target=play)
    thread.start()
    thread.join()
    assert found == [1]


SMALL_NETWORK = """
import sys
import numpy as np
from partita.engine.kernels import Team
from partita.engine.kernels.products.product import product
a, b, out = (np.ones((64, 64), np.float32) for _ in range(3))
product(a, b, out, team=Team(1))()
assert out[0, 0] == 64
print("torch" in sys.modules)
"""


def test_small_products_do_without_torch() -> None:
    ended = subprocess.run([sys.executable, "-c", SMALL_NETWORK], capture_output=True, text=True, check=True)
    assert ended.stdout == "False\n"
