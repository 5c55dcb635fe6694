"""Tiles for processors with other vectors than this one's, compiled in processes of their own."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest
from llvmlite import binding

from partita.engine.kernels import ThreadPool
from partita.engine.kernels.products.tiles import product
from tests.kernels.matrices import matrix

AVX2 = "+avx,+avx2,+bmi,+bmi2,+f16c,+fma,+lzcnt,+movbe,+popcnt,+sse3,+sse4.1,+sse4.2,+ssse3"
SHAPES = ((5, 20, 3), (7, 33, 8), (13, 20, 17), (6, 130, 31))
"""Rows, terms and lanes: below, at and beside whole vectors of any processor, and halves of them."""

VECTORS = """
from partita.engine.kernels.tiles.llvm_vectors import REGISTERS, VECTOR_BYTES
print(VECTOR_BYTES, REGISTERS)
"""
DIGEST = """
from tests.kernels.test_processors import digest
print(digest())
"""

on_x86 = pytest.mark.skipif(
    not binding.get_host_cpu_features().get("avx2"), reason="this processor has no AVX2 to compile for"
)


def digest() -> str:
    """A digest of the bits of some products."""
    found, pool = hashlib.sha256(), ThreadPool(1)
    for m, k, n in SHAPES:
        for transposed in (False, True):
            out = np.zeros((m, n), "f")
            factors = matrix(m, k, "float32", transposed=transposed), matrix(k, n, "float32", seed=1)
            product(*factors, out, pool=pool)()
            found.update(out.tobytes())
    return found.hexdigest()


def printed(code: str, **variables: str) -> str:
    environment = {**os.environ, "NUMBA_CPU_NAME": "haswell", **variables}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.strip()


@on_x86
def test_vectors_are_those_of_the_processor_that_code_is_compiled_for() -> None:
    assert printed(VECTORS, NUMBA_CPU_FEATURES=AVX2) == "32 16"


@on_x86
@pytest.mark.slow
def test_tiles_with_other_vectors_have_the_same_bits() -> None:
    assert printed(DIGEST, NUMBA_CPU_FEATURES=AVX2) == digest()
    assert printed(DIGEST, NUMBA_CPU_FEATURES="+fma,+avx") == digest()  # vectors of 16 bytes
