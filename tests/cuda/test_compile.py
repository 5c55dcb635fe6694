"""Every kernel of ours compiles for a GPU by the compiler that a GPU's host has, which needs no GPU."""

from __future__ import annotations

from itertools import cycle
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numba
import numpy as np
import pytest
from numba import types

from partita.engine import Optimizer
from partita.engine.kernels.cuda import node_text
from partita.engine.kernels.cuda.local_loops import loops
from partita.engine.kernels.cuda.node import _kernels
from partita.engine.kernels.nodes.vectors import Signature
from partita.engine.kernels.patches import PatchGeometry
from partita.engine.numerics.cuda import SIMULATED, cuda
from partita.engine.parameters import UpdateContext
from partita.engine.parameters.optimizers.on_cuda import update_kernel
from tests.cuda.optimizers import OPTIMIZERS
from tests.kernels.node_functions import largest, largest_errors, leaky_sum, leaky_sum_errors
from tests.networks import energy, energy_errors

HOPPER = (9, 0)
KINDS = {"float32": types.float32, "float64": types.float64, "bfloat16": types.uint16}
pytestmark = pytest.mark.skipif(
    SIMULATED or not cuda.cudadrv.nvvm.is_available(), reason="there is no NVVM to compile with"
)


def compile_it(kernel: Any, *arguments: Any) -> None:
    """Compiles a kernel for arguments of these types, or of the types of these values."""
    device = SimpleNamespace(compute_capability=HOPPER)
    kinds = [given if isinstance(given, types.Type) else numba.typeof(given) for given in arguments]
    with mock.patch("numba.cuda.dispatcher.get_current_device", return_value=device):
        text, _ = cuda.compile_ptx(kernel.py_func, tuple(kinds), cc=HOPPER)
    assert ".entry" in text


def arrays(kind: Any, *ndims: int) -> list[Any]:
    return [types.Array(kind, ndim, "C") for ndim in ndims]


@pytest.mark.parametrize(
    ("optimizer", "precision"), [*zip(OPTIMIZERS, cycle(["bfloat16", "float64"]))], ids=str
)
def test_optimizers(optimizer: Optimizer, precision: str) -> None:
    real, gradient = types.float64 if precision == "float64" else types.float32, KINDS[precision]
    vector, bits, marks = (types.Array(kind, 1, "C") for kind in (real, gradient, types.int32))
    state = [vector] * len(optimizer.state_names)
    beside = [bits] if gradient is types.uint16 else [vector]
    settings = (1.0, *optimizer._settings(UpdateContext(0)))
    copies = gradient is types.uint16
    kernel = update_kernel(
        optimizer._arithmetic,
        optimizer._scale,
        len(state),
        len(settings) - 1,
        accumulates=not copies,
        copies=copies,
    )
    compile_it(kernel, marks, vector, bits, *state, *beside, *settings)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["bfloat16", "float64"])
def test_local_layers(precision: str) -> None:
    kind, real = KINDS[precision], KINDS["float64" if precision == "float64" else "float32"]
    kernels, g = loops(np.dtype(str(real))), PatchGeometry(*range(9))
    compile_it(kernels.sums, *arrays(kind, 3, 5, 1), *arrays(real, 4), 0, 0, g)
    compile_it(kernels.errors, *arrays(kind, 3, 5, 4), (0, 1), 0, (0, 1), True, g)
    compile_it(kernels.gradient, *arrays(kind, 3, 4), *arrays(real, 5), 0, 0, g)


FUNCTIONS = [
    (leaky_sum, leaky_sum_errors, (("weight", "e"), ("bias", "n")), "float32"),
    (energy, energy_errors, (("gain", "n"),), "bfloat16"),
    (largest, largest_errors, (("scale", "n"),), "float64"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("up", "down", "learns", "precision"), FUNCTIONS)
def test_nodes(up: Any, down: Any, learns: tuple[tuple[str, str], ...], precision: str) -> None:
    kind, real = KINDS[precision], KINDS["float64" if precision == "float64" else "float32"]
    signature = Signature(learns, 1, precision)
    short, long = arrays(types.int32, 1), arrays(types.int64, 1)
    tables = [*arrays(kind, 2), *short, *long, *short, *long, *long]
    given = [*tables, *arrays(kind, *(1 for _ in learns)), *arrays(kind, 2)]
    compile_it(_kernels(up, node_text.upward_text, signature, 4)["forward"], *given)
    kernels = _kernels(down, node_text.downward_text, signature, 4)
    given += arrays(kind, 2)
    compile_it(kernels["backward_input"], *given, *long, *short, *short, *arrays(kind, 2), 0, 0, True)
    for i in range(1, 1 + len(learns)):
        compile_it(kernels[f"gradient_{i}"], *given, *arrays(real, 1), 0, 0, 1, 0)
