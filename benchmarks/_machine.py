"""What the machine is, and what it can do at most: one thread's matrix products, and its memory.

The limits are measured like any variant, in every round, because they move as everything else does.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import numpy as np
import psutil
from threadpoolctl import threadpool_info, threadpool_limits  # type: ignore[import-untyped]

_STEERING = ("OPENBLAS_", "MKL_", "OMP_", "KMP_", "GOMP_", "ATEN_", "ONEDNN_", "DNNL_", "MALLOC_")
_GEMM = (2560, 2560, 128)
_VECTOR = 1 << 25


def describe() -> str:
    """The processor, the libraries, how busy it is, and every variable that steers a library's arithmetic."""
    blas = ", ".join(
        f"{library['internal_api']} {library['version']} ({library.get('architecture', '?')})"
        for library in threadpool_info()
        if library["user_api"] == "blas" and "numpy" in library["filepath"]
    )
    steering = [f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith(_STEERING)]
    return "\n".join(
        (
            f"{_processor()}, {len(os.sched_getaffinity(0))} cores, "
            f"{psutil.virtual_memory().total / 2**30:.0f} GiB; load {os.getloadavg()[0]:.1f}; "
            f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
            f"Python {platform.python_version()}, NumPy {np.__version__} with {blas or 'an unknown BLAS'}, "
            f"PyTorch {version('torch')}, {platform.system()} {platform.release()}",
            f"steered by: {', '.join(steering) or 'no variable'}",
        )
    )


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    facts = dict(line.split(":", 1) for line in lines if ":" in line)
    by_name = {name.strip(): value.strip() for name, value in facts.items()}
    model = by_name.get("model name", platform.processor())
    return f"{model} (family {by_name.get('cpu family', '?')}, model {by_name.get('model', '?')})"


class Limits:
    """What one thread of this process reaches."""

    def __init__(self) -> None:
        threadpool_limits(limits=1, user_api="blas")
        draw = np.random.default_rng(0)
        rows, inner, columns = _GEMM
        self._left = draw.standard_normal((rows, inner), dtype=np.float32)
        self._right = draw.standard_normal((inner, columns), dtype=np.float32)
        self._product = np.empty((rows, columns), np.float32)
        self._values = np.zeros(_VECTOR, np.float32)
        self._change = np.zeros(_VECTOR, np.float32)

    def gemm(self) -> float:
        """GFLOP/s of NumPy, float32, 2560 x 2560 x 128 (the median of ten)."""

        def multiply() -> None:
            np.matmul(self._left, self._right, out=self._product)

        return 2e-9 * float(np.prod(_GEMM)) / _median_s(multiply, times=10)

    def memory(self) -> float:
        """GB/s of `values += change` over 128 MiB each: two reads and a write (the median of three)."""

        def add() -> None:
            np.add(self._values, self._change, out=self._values)

        return 1e-9 * 3 * self._values.nbytes / _median_s(add, times=3)


def _median_s(act: Callable[[], None], *, times: int) -> float:
    act()
    found = []
    for _ in range(times):
        began = time.perf_counter()
        act()
        found.append(time.perf_counter() - began)
    return float(np.median(found))
