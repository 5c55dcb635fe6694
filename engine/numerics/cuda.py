"""Compilation for a GPU by numba.cuda, and launches of such kernels. Imports numba.cuda.

A kernel's threads share its work by `strided`, so that any number of them does it: each takes every n-th
number. Numba's simulator of a GPU (NUMBA_ENABLE_CUDASIM=1) runs kernels as plain Python, for which `plain`
has the functions that they call.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any, Final

import numba.cuda
from numba.core.errors import NumbaPerformanceWarning

from partita.engine.numerics import plain
from partita.engine.numerics.compiled import fma
from partita.engine.numerics.functions import exponential, hyperbolic_tangent
from partita.engine.numerics.precision import downcast, upcast

cuda: Final[Any] = numba.cuda
"""The module, which has no types."""
SIMULATED: Final = bool(vars(numba.config)["ENABLE_CUDASIM"])
_THREADS, _MOST_BLOCKS = (2, 2) if SIMULATED else (256, 1 << 14)

Launch = Callable[..., None]
"""Puts a kernel on the device's stream, with its arguments; returns before it is done."""


@cuda.jit(device=True)
def _larger(a: Any, b: Any) -> Any:
    return a if a > b else b


@cuda.jit(device=True)
def _smaller(a: Any, b: Any) -> Any:
    return a if a < b else b


FUNCTIONS: Final[dict[str, Any]] = {
    "upcast": plain.upcast if SIMULATED else upcast,
    "downcast": plain.downcast if SIMULATED else downcast,
    "fma": plain.fma if SIMULATED else fma,
    "exponential": plain.exponential if SIMULATED else exponential,
    "hyperbolic_tangent": plain.hyperbolic_tangent if SIMULATED else hyperbolic_tangent,
    "max": _larger,
    "min": _smaller,
}
"""Functions that kernels may call by these names. (numba.cuda has no `max` or `min` that compiles.)"""


def on_device(function: Callable[..., Any], **names: Any) -> Any:
    """Compiles a function that kernels call: a plain one's code, in which these names have other values."""
    return cuda.jit(device=True)(_twin(function, names))


def kernel(function: Callable[..., None], **names: Any) -> Any:
    """Compiles a kernel: a plain function's code, in which these names have other values."""
    return cuda.jit(_twin(function, names))


def _twin(function: Callable[..., Any], names: dict[str, Any]) -> FunctionType:
    """Copies a function with other globals; renamed in its code, as Numba insists on Python's own `range`."""
    assert isinstance(function, FunctionType)
    names = FUNCTIONS | names
    code = function.__code__
    code = code.replace(co_names=tuple(f"{name}_there" if name in names else name for name in code.co_names))
    around = function.__globals__ | {f"{name}_there": value for name, value in names.items()}
    return FunctionType(code, around, function.__name__, function.__defaults__, function.__closure__)


@cuda.jit(device=True)
def strided(n: int) -> range:
    """Returns those of n numbers that the calling thread takes."""
    return range(cuda.grid(1), n, cuda.gridsize(1))


def launcher(compiled: Any, n: int, *, device: int | None) -> Launch:
    """Prepares launches of a kernel.

    Args:
        compiled: by `kernel`.
        n: number of threads that would have something to do.
        device: the number of the GPU; None in the simulator.
    """
    blocks = max(1, min(-(-n // _THREADS), _MOST_BLOCKS))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumbaPerformanceWarning)  # a small layer does not fill a GPU
        configured = compiled[blocks, _THREADS]
    if device is None:
        return configured  # type: ignore[no-any-return]

    def launch(*arguments: Any) -> None:
        with cuda.gpus[device]:
            configured(*arguments)

    return launch


def compile_for(compiled: Any, *arguments: Any, device: int | None) -> None:
    """Compiles a kernel for arguments of these types, so that no step waits for it."""
    if device is not None:
        with cuda.gpus[device]:
            compiled.compile(tuple(map(numba.typeof, arguments)))


def bound(compiled: Any, n: int, *arguments: Any, device: int | None) -> Callable[[], None]:
    """Prepares a launch with these arguments, as `launcher`, compiled for them now."""
    compile_for(compiled, *arguments, device=device)
    return partial(launcher(compiled, n, device=device), *arguments)
