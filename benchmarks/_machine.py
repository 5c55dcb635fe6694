"""A description of the machine and of what steers its libraries; `_limits` measures its highest rates."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import numpy as np
import psutil
from threadpoolctl import threadpool_info

_STEERING = ("OPENBLAS_", "MKL_", "OMP_", "KMP_", "GOMP_", "ATEN_", "ONEDNN_", "DNNL_", "MALLOC_", "NUMBA_")


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
