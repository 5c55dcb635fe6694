"""Prepared products of two matrices, by the library and on the threads that the plan determines.

The choice is a pure function of the shape and of the plan (`partitioner/cluster/products.py`): no process
measures, so all that have the plan compute the same bits. Torch is imported when it is needed, and not
before: that takes seconds and some 200 MB.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from partita.engine.kernels.kernel import Array, Call
from partita.engine.kernels.products import tiles
from partita.engine.kernels.thread_pool import ThreadPool
from partita.engine.kernels.tiles.scratch import Scratch
from partita.partitioner.cluster.products import Choice, Products, ProductShape


def product(
    a: Array,
    b: Array,
    out: Array,
    *,
    pool: ThreadPool,
    choices: Products,
    scratch: Scratch | None = None,
    accumulate: bool = False,
) -> Call:
    """Prepares `a @ b` into `out`.

    Args:
        a: `[m, k]`, float32, float64, or bfloat16 as uint16; in rows or in columns (a transposed view), which
            may lie apart.
        b: `[k, n]`, likewise.
        out: `[m, n]`, of the same type, C-contiguous.
        pool: the threads that may compute it.
        choices: which library computes it, and how many of these threads it uses.
        scratch: as for `tiles.product`; also holds a product before it is added.
        accumulate: whether to add to what is there. NumPy's BLAS cannot, so the product goes to scratch
            first.
    """
    assert a.dtype == b.dtype == out.dtype and out.flags.c_contiguous, f"{a.dtype} {b.dtype} {out.dtype}"
    assert a.shape[1] == b.shape[0] and out.shape == (a.shape[0], b.shape[1]), (
        f"{a.shape} {b.shape} {out.shape}"
    )
    choice = choices.choose(shape_of(a, b, pool.threads))
    return product_by(choice, a, b, out, pool=pool, scratch=scratch, accumulate=accumulate)


def shape_of(a: Array, b: Array, threads: int) -> ProductShape:
    """Returns the product's shape, as choices know it."""
    layout = "".join("N" if matrix.strides[1] == matrix.itemsize else "T" for matrix in (a, b))
    precision = "bfloat16" if a.dtype == np.uint16 else a.dtype.name
    return ProductShape(a.shape[0], a.shape[1], b.shape[1], layout, precision, threads)


def product_by(
    choice: Choice,
    a: Array,
    b: Array,
    out: Array,
    *,
    pool: ThreadPool,
    scratch: Scratch | None = None,
    accumulate: bool = False,
) -> Call:
    """Prepares a product by the library of a choice; see `product`."""
    threads = min(choice.threads, pool.threads)
    if choice.library == "torch":
        from partita.engine.kernels.products import torch_products  # here, because it imports torch

        return torch_products.product(a, b, out, pool=pool.at_most(threads), accumulate=accumulate)
    if choice.by_tiles:
        few, flat = pool.at_most(threads), choice.library == "flat tiles"
        return tiles.product(a, b, out, pool=few, scratch=scratch, accumulate=accumulate, flat=flat)
    return _by_numpy(a, b, out, pool=pool.at_most(threads), scratch=scratch, accumulate=accumulate)


def _by_numpy(
    a: Array, b: Array, out: Array, *, pool: ThreadPool, scratch: Scratch | None, accumulate: bool
) -> Call:
    """Prepares a product by the BLAS, which has one thread (`blas`): each thread of the pool calls it for
    rows of its own.
    """
    if not accumulate:
        return partial(_multiply, a, b, out, pool) if pool.threads > 1 else partial(np.matmul, a, b, out)
    buffer = scratch or Scratch(1, out.dtype)
    buffer.reserve(out.size)

    def add() -> None:
        with buffer.take(out.size) as flat:
            term = flat.reshape(out.shape)
            _multiply(a, b, term, pool)
            np.add(out, term, out)

    return add


def _multiply(a: Array, b: Array, out: Array, pool: ThreadPool) -> None:
    def work(start: int, stop: int) -> None:
        np.matmul(a[start:stop], b, out[start:stop])  # not np.dot, which copies a matrix whose rows lie apart

    pool.split(0, len(out), work)
