"""Products of matrices by torch, on the memory of NumPy's arrays. Importing this imports torch."""

from __future__ import annotations

import torch

from partita.engine.kernels.kernel import Array, Call
from partita.engine.kernels.tensors import on_host, use_threads
from partita.engine.kernels.thread_pool import ThreadPool


def product(a: Array, b: Array, out: Array, *, pool: ThreadPool, accumulate: bool = False) -> Call:
    """Prepares a product; see `products.product`.

    Each thread of the pool calls torch for rows of its own. Torch's own threads spin for up to 10 ms after a
    call, and a thread of the pool that is woken meanwhile has no core.
    """
    left, right, result = on_host(a), on_host(b), on_host(out)

    def work(start: int, stop: int) -> None:
        use_threads(1)
        rows, place = left[start:stop], result[start:stop]
        if accumulate:
            place.addmm_(rows, right)
        else:
            torch.mm(rows, right, out=place)

    return lambda: pool.split(0, len(result), work)
