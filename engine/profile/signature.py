"""The signature of measurements: processor, its features, cores, versions and environment variables, in a
line.
"""

from __future__ import annotations

import hashlib
import os
import platform
from functools import cache
from importlib.metadata import version
from typing import Final

from partita.partitioner.cluster.processor import processor

_READ_BY_BLAS: Final = ("ATEN_", "BLIS_", "DNNL_", "GOTO_", "KMP_", "MKL_", "OMP_", "ONEDNN_", "OPENBLAS_")
_SET_BY_LIBRARIES: Final = {"KMP_DUPLICATE_LIB_OK"}  # when they are imported; it says nothing about speed


def signature() -> str:
    """Returns the line. Measurements under another signature do not hold."""
    read = sorted(name for name in set(os.environ) - _SET_BY_LIBRARIES if name.startswith(_READ_BY_BLAS))
    return ", ".join([*_hardware_and_versions(), *(f"{name}={os.environ[name]}" for name in read)])


@cache
def _hardware_and_versions() -> tuple[str, ...]:
    found = processor()
    features = hashlib.sha256(" ".join(found.features).encode()).hexdigest()[:8]
    named = " ".join(word for word in (found.name, found.family, found.model) if word)
    libraries = (f"{name} {version(name)}" for name in ("partita", "numpy", "numba", "torch"))
    python = f"Python {platform.python_version()}"
    return (f"{named} (features {features})", f"{os.cpu_count()} cores", *libraries, python)
