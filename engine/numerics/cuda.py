"""How this project compiles for a GPU, by numba.cuda, and how such kernels are launched. Imports numba.cuda.

A kernel's threads share out its work by `strided`, so that any number of them does it: each takes every n-th
number. Numba's simulator of a GPU (NUMBA_ENABLE_CUDASIM=1) runs kernels as plain Python, for which the intrinsics
of `compiled` and `precision` are written here once more.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any, Final

import numba
import numpy as np
from numba import cuda

from partita.engine.numerics.compiled import fma
from partita.engine.numerics.functions import exponential, hyperbolic_tangent
from partita.engine.numerics.precision import narrow, widen

SIMULATED: Final = bool(numba.config.ENABLE_CUDASIM)
_THREADS, _MOST_BLOCKS = (2, 2) if SIMULATED else (256, 1 << 14)

Launch = Callable[..., None]
"""Puts a kernel on the device's stream, with its arguments; returns before it is done."""


def _widen(x: Any) -> Any:
    return (np.uint32(x) << np.uint32(16)).view(np.float32) if isinstance(x, np.uint16) else x


def _narrow(value: Any, like: Any) -> Any:
    if not isinstance(like, np.uint16):
        return type(like)(value)
    bits = np.float32(value).view(np.uint32)
    if math.isnan(value):
        return np.uint16((bits | 0x400000) >> 16)
    return np.uint16((int(bits) + 0x7FFF + (int(bits) >> 16 & 1)) >> 16)


def _fma(a: Any, b: Any, c: Any) -> Any:
    return type(a)(float(a) * float(b) + float(c))


@cuda.jit(device=True)  # type: ignore[untyped-decorator]
def _larger(a: Any, b: Any) -> Any:
    return a if a > b else b


@cuda.jit(device=True)  # type: ignore[untyped-decorator]
def _smaller(a: Any, b: Any) -> Any:
    return a if a < b else b


def _exponential(x: Any) -> Any:
    return type(x)(math.exp(min(x, 1000)))


def _hyperbolic_tangent(x: Any) -> Any:
    return type(x)(math.tanh(x))


FUNCTIONS: Final[dict[str, Any]] = {
    "widen": _widen if SIMULATED else widen,
    "narrow": _narrow if SIMULATED else narrow,
    "fma": _fma if SIMULATED else fma,
    "exponential": _exponential if SIMULATED else exponential,
    "hyperbolic_tangent": _hyperbolic_tangent if SIMULATED else hyperbolic_tangent,
    "max": _larger,
    "min": _smaller,
}
"""What kernels may call by these names. (numba.cuda has no `max` or `min` that compiles.)"""


def on_device(function: Callable[..., Any], **names: Any) -> Any:
    """A function that kernels call: a plain one's code, in which these names stand for something else."""
    return cuda.jit(device=True)(_twin(function, names))


def kernel(function: Callable[..., None], **names: Any) -> Any:
    """A kernel: a plain function's code, in which these names stand for something else."""
    return cuda.jit(_twin(function, names))


def _twin(function: Callable[..., Any], names: dict[str, Any]) -> FunctionType:
    """The function among other names. They get new ones in its code, as Numba insists on Python's own `range`."""
    assert isinstance(function, FunctionType)
    names = FUNCTIONS | names
    code = function.__code__
    code = code.replace(co_names=tuple(f"{name}_there" if name in names else name for name in code.co_names))
    around = function.__globals__ | {f"{name}_there": value for name, value in names.items()}
    return FunctionType(code, around, function.__name__, function.__defaults__, function.__closure__)


@cuda.jit(device=True)  # type: ignore[untyped-decorator]
def strided(n: int) -> range:
    """Of n numbers, those that the calling thread takes."""
    return range(cuda.grid(1), n, cuda.gridsize(1))


def launcher(compiled: Any, n: int, *, device: int | None) -> Launch:
    """Prepares launches of a kernel.

    Args:
        compiled: by `kernel`.
        n: how many threads would have something to do.
        device: the number of the GPU; None in the simulator.
    """
    blocks = max(1, min(-(-n // _THREADS), _MOST_BLOCKS))
    configured = compiled[blocks, _THREADS]
    if device is None:
        return configured  # type: ignore[no-any-return]

    def launch(*arguments: Any) -> None:
        with cuda.gpus[device]:
            configured(*arguments)

    return launch


def compile_for(compiled: Any, *arguments: Any) -> None:
    """Compiles a kernel for arguments of these types, so that no step waits for it."""
    if not SIMULATED:
        compiled.compile(tuple(map(numba.typeof, arguments)))


def bound(compiled: Any, n: int, *arguments: Any, device: int | None) -> Callable[[], None]:
    """A launch with these arguments, as `launcher`, compiled for them now."""
    compile_for(compiled, *arguments)
    return partial(launcher(compiled, n, device=device), *arguments)
