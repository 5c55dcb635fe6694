"""The machine's highest rates, measured in a separate process: arguments THREADS.

Rates are measured like any variant, in every round, because they move as everything else does.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch.nn import functional

from benchmarks._worker import Worker, serve, threads_of

GEMM: Final = (2560, 2560, 128)
VECTOR: Final = 1 << 25


class Limits:
    """Rates of a process with so many threads. Use `limits(threads)` to have them measured elsewhere."""

    def __init__(self, threads: int) -> None:
        self.begin(threads)
        draw = np.random.default_rng(0)
        rows, inner, columns = GEMM
        self._left = draw.standard_normal((rows, inner), dtype=np.float32)
        self._right = draw.standard_normal((inner, columns), dtype=np.float32)
        self._product = np.empty((rows, columns), np.float32)
        # torch's own pass, because it uses all threads
        self._values, self._change = torch.zeros(VECTOR), torch.zeros(VECTOR)

    def begin(self, threads: int) -> None:
        """Uses so many threads from now on."""
        threadpool_limits(limits=threads, user_api="blas")
        torch.set_num_threads(threads)

    def numpy(self) -> float:
        """GFLOP/s of NumPy's matrix product, float32, 2560 x 2560 x 128 (the median of five)."""
        return _gflops(lambda: np.matmul(self._left, self._right, out=self._product))

    def torch(self, precision: str) -> float:
        """GFLOP/s of torch's matrix product, in "float32" or "bfloat16"."""
        dtype = getattr(torch, precision)
        left, right, product = (
            torch.from_numpy(array).to(dtype) for array in (self._left, self._right, self._product)
        )
        return _gflops(lambda: torch.mm(left, right, out=product))

    def gemm(self, precision: str) -> float:
        """The higher of the two rates."""
        found = self.torch(precision)
        return max(found, self.numpy()) if precision == "float32" else found

    def convolution(self) -> float:
        """GFLOP/s of torch's convolution, float32, 3 x 3 on 32 pictures of 8 x 8 and 512 channels."""
        picture, kernel = torch.ones(32, 512, 8, 8), torch.ones(512, 512, 3, 3)
        operations = 2.0 * picture.numel() * 512 * 9
        with torch.no_grad():
            convolve = partial(functional.conv2d, picture, kernel, padding=1)
            return 1e-9 * operations / _median_s(convolve, times=3)

    def memory(self) -> float:
        """GB/s of `values += change` over 128 MiB each: two reads and a write (the median of three)."""
        n_bytes = 3 * self._values.numel() * self._values.element_size()
        return 1e-9 * n_bytes / _median_s(lambda: self._values.add_(self._change), times=3)


def limits(threads: int, *, most: int = 1) -> Worker:
    """`Limits` in a process of its own, with so many threads; later with up to `most`."""
    return Worker("_limits", str(threads), environment=threads_of(max(threads, most)))


def _gflops(multiply: Callable[[], object]) -> float:
    return 2e-9 * float(np.prod(GEMM)) / _median_s(multiply, times=5)


def _median_s(act: Callable[[], object], *, times: int) -> float:
    act()
    found = []
    for _ in range(times):
        began = time.perf_counter()
        act()
        found.append(time.perf_counter() - began)
    return float(np.median(found))


if __name__ == "__main__":
    serve(lambda: Limits(int(sys.argv[1])))
