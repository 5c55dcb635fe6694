"""Prepared products: against float64, as matrices lie in memory, by any library."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from threadpoolctl import threadpool_info, threadpool_limits

from partita.engine.kernels import Array, ThreadPool
from partita.engine.kernels.products import product
from partita.engine.kernels.products.blas import blas_on_one_thread
from partita.engine.kernels.products.product import product_by
from partita.engine.numerics import aligned, storage, upcast_array
from partita.partitioner import Choice, Products, ProductShape
from partita.partitioner.cluster.products import LIBRARIES, Library
from partita.partitioner.cluster.threads import ThreadShares
from tests.kernels.matrices import matrix, stored
from tests.properties.products import assert_product

PRECISIONS = ["float32", "float64", "bfloat16"]
TEAM = ThreadPool(1)
FIXED = Products()
sizes = st.one_of(st.integers(1, 4), st.integers(1, 40))


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


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
    product(a, b, whole[1:-1], pool=TEAM, choices=FIXED)()
    assert_product(a, b, whole[1:-1], precision)
    np.testing.assert_array_equal(upcast_array(whole[[0, -1]]), 7)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_call_reads_what_the_arrays_hold_by_then(precision: str) -> None:
    a, b = matrix(5, 4, precision), matrix(4, 3, precision)
    out = stored(np.zeros((5, 3)), precision)
    call = product(a, b, out, pool=TEAM, choices=FIXED)
    for seed in (1, 2):
        a[...] = matrix(5, 4, precision, seed=seed)
        call()
        assert_product(a, b, out, precision)


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("transposed", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("library", LIBRARIES)
def test_every_library_computes_large_products(
    library: Library, threads: int, transposed: tuple[bool, bool], precision: str
) -> None:
    a = matrix(120, 130, precision, transposed=transposed[0], margin=3)
    b = matrix(130, 110, precision, transposed=transposed[1])
    out = np.zeros((120, 110), storage(precision))
    with closing(ThreadPool(threads, shares=ThreadShares(loop=0))) as pool:
        product_by(Choice(library, threads), a, b, out, pool=pool)()
    assert_product(a, b, out, precision)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("library", LIBRARIES)
def test_every_library_adds_products(library: Library, precision: str) -> None:
    """Two halves of the terms, one after the other, are the whole product: as batches come in portions."""
    choice = Choice("torch" if precision == "bfloat16" else library, 1)
    a = matrix(120, 260, precision, margin=3)
    b = matrix(260, 110, precision, transposed=True)
    out = stored(np.zeros((120, 110)), precision)
    for begin, accumulate in ((0, False), (130, True)):
        terms = slice(begin, begin + 130)
        product_by(choice, a[:, terms], b[terms], out, pool=TEAM, accumulate=accumulate)()
    allowed = 2 if precision == "bfloat16" else 1  # which is rounded once for each half
    assert_product(a, b, out, precision, roundings=allowed)


class Recorded(Products):
    """Chooses as a test says, and remembers what for."""

    def __init__(self, choice: Choice) -> None:
        super().__init__()
        object.__setattr__(self, "said", choice)
        object.__setattr__(self, "asked", [])

    said: Choice
    asked: list[ProductShape]

    def choose(self, shape: ProductShape) -> Choice:
        self.asked.append(shape)
        return self.said


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_product_is_computed_by_the_library_that_the_plan_says(library: Library) -> None:
    a, b = matrix(150, 260, "float32", transposed=True), matrix(260, 170, "float32")
    out, expected = np.zeros((150, 170), "f"), np.zeros((150, 170), "f")
    choices = Recorded(Choice(library, 2))
    with blas_on_one_thread(), closing(ThreadPool(2)) as pool:
        product(a, b, out, pool=pool, choices=choices)()
        product_by(Choice(library, 2), a, b, expected, pool=pool)()
    assert choices.asked == [ProductShape(150, 260, 170, "TN", "float32", 2)]
    np.testing.assert_array_equal(out.view("u4"), expected.view("u4"))


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("layout", ["NN", "TN", "NT"])
@pytest.mark.parametrize("library", LIBRARIES)
def test_the_same_product_has_the_same_bits_wherever_memory_lies(
    library: Library, layout: str, precision: str
) -> None:
    """Arrays begin where a line of memory does, so that a BLAS takes the same path in every process."""
    found = []
    for pages in range(4):
        padding = [np.zeros(1 + 4096 * pages + 24 * n, np.uint8) for n in range(3)]
        a = placed(matrix(96, 200, precision, transposed=layout[0] == "T"))
        b = placed(matrix(200, 130, precision, transposed=layout[1] == "T", seed=1))
        out = aligned((96, 130), a.dtype)
        product_by(Choice(library, 1), a, b, out, pool=TEAM)()
        found.append(out.tobytes())
        del padding
    assert len(set(found)) == 1


def placed(like: Array) -> Array:
    """The same numbers in memory as a part takes it."""
    if like.flags.c_contiguous:
        found = aligned(like.shape, like.dtype)
    else:
        found = aligned(like.shape[::-1], like.dtype).T
    found[...] = like
    assert found.ctypes.data % 64 == 0
    return found


def test_a_blas_has_one_thread_while_anybody_needs_it() -> None:
    with threadpool_limits(limits=2, user_api="blas"):
        first, second = blas_on_one_thread(), blas_on_one_thread()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert blas_threads() == {1}
        second.__exit__(None, None, None)
        assert blas_threads() == {2}


def blas_threads() -> set[int]:
    return {one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"}


def test_the_threads_of_torch_are_set_even_where_it_has_them() -> None:
    """Else MKL, which counts apart, may have another number in a process that used torch before."""
    a, b, out = (aligned((8, 8), np.dtype("f")) for _ in range(3))
    torch.set_num_threads(1)
    asked: list[int] = []

    def play() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch, "set_num_threads", asked.append)
            patch.setattr(torch, "get_num_threads", lambda: 1)
            for _ in range(2):
                product_by(Choice("torch", 1), a, b, out, pool=TEAM)()

    thread = threading.Thread(target=play)
    thread.start()
    thread.join()
    assert asked == [1]


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_threads_call_torch_for_rows_of_their_own(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's own threads, which spin after a call, would keep those of the pool from a core."""
    a, b = matrix(96, 200, precision, transposed=True), matrix(200, 130, precision)
    out, alone = (stored(np.zeros((96, 130)), precision) for _ in range(2))
    rows, multiply = [], torch.mm

    def counted(left: torch.Tensor, right: torch.Tensor, *, out: torch.Tensor) -> None:
        rows.append((len(left), torch.get_num_threads()))
        multiply(left, right, out=out)

    monkeypatch.setattr(torch, "mm", counted)
    product_by(Choice("torch", 1), a, b, alone, pool=TEAM)()
    with closing(ThreadPool(3)) as pool:
        product_by(Choice("torch", 3), a, b, out, pool=pool)()
    assert rows == [(96, 1), (32, 1), (32, 1), (32, 1)]
    np.testing.assert_array_equal(upcast_array(out), upcast_array(alone))


def test_torch_uses_the_threads_that_were_given_on_every_thread_that_calls() -> None:
    out = stored(np.zeros((64, 64)), "bfloat16")
    call = product(matrix(64, 64, "bfloat16"), matrix(64, 64, "bfloat16"), out, pool=TEAM, choices=FIXED)
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
from partita.engine.kernels import ThreadPool
from partita.engine.kernels.products.product import product
from partita.partitioner.cluster.products import Products
from partita.partitioner.cluster.threads import ThreadShares
a, b, out = (np.ones((64, 64), np.float32) for _ in range(3))
product(a, b, out, pool=ThreadPool(1), choices=Products())()
assert out[0, 0] == 64
print("torch" in sys.modules)
"""


def test_small_products_do_without_torch() -> None:
    ended = subprocess.run([sys.executable, "-c", SMALL_NETWORK], capture_output=True, text=True, check=True)
    assert ended.stdout == "False\n"
