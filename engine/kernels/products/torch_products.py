"""Products of matrices by torch, on the memory of NumPy's arrays. To import this imports torch."""

from __future__ import annotations

import threading

import numpy as np
import torch

from partita.engine.kernels.kernel import Array, Call


class _Threads(threading.local):
    """How many threads the calling thread has asked of torch; 0 if it never has."""

    asked = 0


_THREADS = _Threads()


def product(a: Array, b: Array, out: Array, *, threads: int, accumulate: bool = False) -> Call:
    """As `products.product`."""
    left, right, result = _tensor(a), _tensor(b), _tensor(out)

    def call() -> None:
        _use(threads)
        if accumulate:
            result.addmm_(left, right)
        else:
            torch.mm(left, right, out=result)

    return call


def _use(threads: int) -> None:
    """Lets products of the calling thread use exactly so many.

    OpenMP and MKL keep the number for each thread that calls, and this may be one that torch has never seen.
    It is set even where OpenMP has it already: until then MKL may use fewer threads, or those of another
    limit.
    """
    if _THREADS.asked != threads or torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
        _THREADS.asked = threads


def _tensor(array: Array) -> torch.Tensor:
    """The same memory."""
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if array.dtype == np.uint16 else tensor
