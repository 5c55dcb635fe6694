"""Products of matrices by torch, on the memory of NumPy's arrays. Importing this imports torch."""

from __future__ import annotations

import threading

import numpy as np
import torch

from partita.engine.kernels.kernel import Array, Call


class _Threads(threading.local):
    """Number of threads that the calling thread has set in torch; 0 if it never has."""

    asked = 0


_THREADS = _Threads()


def product(a: Array, b: Array, out: Array, *, threads: int, accumulate: bool = False) -> Call:
    """Prepares a product; see `products.product`."""
    left, right, result = _tensor(a), _tensor(b), _tensor(out)

    def call() -> None:
        _use(threads)
        if accumulate:
            result.addmm_(left, right)
        else:
            torch.mm(left, right, out=result)

    return call


def _use(threads: int) -> None:
    """Sets the number of threads for products of the calling thread.

    OpenMP and MKL keep the number for each thread that calls, and this may be one that torch has never seen.
    It is set even where OpenMP has it already: until then MKL may use fewer threads, or those of another
    limit.
    """
    if _THREADS.asked != threads or torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
        _THREADS.asked = threads


def _tensor(array: Array) -> torch.Tensor:
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if array.dtype == np.uint16 else tensor
