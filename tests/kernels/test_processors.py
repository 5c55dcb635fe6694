"""Tiles for processors with other vectors than this one's, compiled in processes of their own."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from llvmlite import binding

from partita.engine.kernels import ThreadPool
from partita.engine.kernels.products.tiles import product
from partita.engine.kernels.tiles.forms import candidates
from partita.layers import Conv2D, LocallyConnected2D
from partita.partitioner import Products, TileForm, TileForms
from tests.kernels.cases import case, play
from tests.kernels.matrices import matrix

AVX2 = "+avx,+avx2,+bmi,+bmi2,+f16c,+fma,+lzcnt,+movbe,+popcnt,+sse3,+sse4.1,+sse4.2,+ssse3"
SHAPES = ((5, 20, 3), (7, 33, 8), (13, 20, 17), (6, 130, 31))
"""Rows, terms and lanes: below, at and beside whole vectors of any processor, and halves of them."""

VECTORS = """
from partita.engine.kernels.tiles.forms import candidates
from partita.engine.kernels.tiles.llvm_vectors import REGISTERS, VECTOR_BYTES
print(VECTOR_BYTES, REGISTERS)
print(*candidates(), sep="; ")
"""
DIGEST = """
from tests.kernels.test_processors import digest
print(digest())
"""
LAYERS = """
from tests.kernels.test_processors import digest_of_layers
print(digest_of_layers())
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


def digest_of_layers() -> str:
    """A digest of the bits of layers on patches, in every form that the processor has; all forms agree."""
    found = hashlib.sha256()
    for layer in (LocallyConnected2D(9, (3, 2), padding="same"), Conv2D(9, 3, padding="same")):
        given, digests = case(layer, (7, 6, 5), batch=21, dtype=np.float32), set()
        for form in (None, TileForm(64, 8, 3), *candidates()):  # the second is too wide for some
            played = play(replace(given, products=Products(forms=TileForms(fixed=form))))
            arrays = played.state, *played.errors, played.gradients[0]  # biases are summed in any order
            digests.add(b"".join(array.tobytes() for array in arrays))
        (bits,) = digests
        found.update(bits)
    return found.hexdigest()


def printed(code: str, **variables: str) -> str:
    environment = {**os.environ, "NUMBA_CPU_NAME": "haswell", **variables}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.strip()


@on_x86
def test_vectors_are_those_of_the_processor_that_code_is_compiled_for() -> None:
    assert printed(VECTORS, NUMBA_CPU_FEATURES=AVX2).splitlines() == [
        "32 16",
        "6 x 2 vectors of 32 bytes, masked or whole; 4 x 3 vectors of 32 bytes, masked or whole; "
        "6 x 2 vectors of 32 bytes, halved; 4 x 3 vectors of 32 bytes, halved",
    ]


@on_x86
@pytest.mark.slow
def test_tiles_with_other_vectors_have_the_same_bits() -> None:
    assert printed(DIGEST, NUMBA_CPU_FEATURES=AVX2) == digest()
    assert printed(DIGEST, NUMBA_CPU_FEATURES="+fma,+avx") == digest()  # vectors of 16 bytes


@on_x86
@pytest.mark.slow
@pytest.mark.parametrize("features", [AVX2, "+fma,+avx"])
def test_layers_on_patches_have_the_same_bits_in_every_form_of_every_processor(features: str) -> None:
    assert printed(LAYERS, NUMBA_CPU_FEATURES=features) == digest_of_layers()
