"""Products of matrices by torch, on the memory of NumPy's arrays. Importing this imports torch."""

from __future__ import annotations

import torch

from partita.engine.kernels.kernel import Array, Call
from partita.engine.kernels.tensors import on_host, use_threads


def product(a: Array, b: Array, out: Array, *, threads: int, accumulate: bool = False) -> Call:
    """Prepares a product; see `products.product`."""
    left, right, result = on_host(a), on_host(b), on_host(out)

    def call() -> None:
        use_threads(threads)
        if accumulate:
            result.addmm_(left, right)
        else:
            torch.mm(left, right, out=result)

    return call
