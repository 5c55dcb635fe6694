"""Products of matrices by torch, on the memory of NumPy's arrays. To import this imports torch."""

from __future__ import annotations

import numpy as np
import torch

from partita.engine.kernels.kernel import Array, Call


def product(a: Array, b: Array, out: Array, *, threads: int, accumulate: bool = False) -> Call:
    """As `products.product`."""
    left, right, result = _tensor(a), _tensor(b), _tensor(out)

    def call() -> None:
        # OpenMP keeps the number for each thread that calls, and this may be one that torch has never seen.
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        if accumulate:
            result.addmm_(left, right)
        else:
            torch.mm(left, right, out=result)

    return call


def _tensor(array: Array) -> torch.Tensor:
    """The same memory."""
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if array.dtype == np.uint16 else tensor
