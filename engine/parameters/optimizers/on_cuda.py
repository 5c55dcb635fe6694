"""Optimizers on a GPU: the loop that an optimizer has for a CPU, compiled once more, its numbers shared out
among threads.

The arithmetic is that of the loop, but a GPU's compiler may fuse a product with a sum, so results agree with
a CPU's within rounding. Imports numba.cuda.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from partita.engine.numerics.cuda import SIMULATED, compile_for, kernel, launcher, on_device, strided
from partita.engine.parameters.optimizers.optimizer import Apply, Moment, Optimizer


def bind_on_cuda(
    optimizer: Optimizer,
    values: Any,
    gradient: Any,
    state: Mapping[str, Any],
    *,
    accumulated: Any | None,
    copy: Any | None,
    marks: Any,
    device: int | None,
) -> Apply:
    """As `Optimizer.bind`, for arrays of numba.cuda.

    Args:
        optimizer: of the replica.
        values: as for `Optimizer.bind`, like the following.
        gradient: of them.
        state: of the optimizer.
        accumulated: takes the gradient.
        copy: takes the values.
        marks: int32 `[1]`: becomes 1 where a number of the gradient is not finite, as the update cannot say.
        device: the number of the GPU; None in the simulator.
    """
    arrays = (values, gradient, *optimizer._arrays(state), accumulated, copy)
    numbers = optimizer._numbers(Moment(0))
    compiled = _compiled(optimizer._loop, tuple(array is not None for array in arrays), len(numbers))
    given = [array for array in arrays if array is not None]
    compile_for(compiled, marks, *given, 1.0, *numbers, device=device)
    launch = launcher(compiled, len(values), device=device)

    def apply(moment: Moment) -> bool:
        launch(marks, *given, moment.factor, *optimizer._numbers(moment))
        return True

    return apply


@lru_cache(maxsize=64)
def _compiled(loop: Any, is_there: tuple[bool, ...], n_numbers: int) -> Any:
    """The kernel of a loop, for the arrays that are there: it cannot be given None."""
    names = {"range": strided} | ({"marked": _marked} if SIMULATED else {})
    arrays = [f"a{i}" for i in range(len(is_there))]
    numbers = ["factor", *(f"n{i}" for i in range(n_numbers))]
    given = [name for name, there in zip(arrays, is_there, strict=True) if there]
    passed = [name if there else "None" for name, there in zip(arrays, is_there, strict=True)]
    text = f"""
def update({", ".join(["marks", *given, *numbers])}):
    if not loop({", ".join([*passed, *numbers])}):
        marks[0] = 1
"""
    found: dict[str, Callable[..., None]] = {}
    exec(compile(text, "<generated update>", "exec"), found)
    return kernel(found["update"], loop=on_device(loop.py_func, **names))


def _marked(mark: Any, number: Any) -> Any:
    """`finite.marked` in plain Python."""
    return mark if np.isfinite(number) else np.int32(1)
