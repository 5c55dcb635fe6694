"""Optimizers on a GPU: the loop of a CPU, compiled with its numbers distributed over threads.

The arithmetic is the same, but a GPU's compiler may fuse a product with a sum, so results agree with a CPU's
within rounding. Imports numba.cuda.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from partita.engine.numerics.cuda import SIMULATED, compile_for, kernel, launcher, on_device, strided
from partita.engine.parameters.optimizers.optimizer import Optimizer, Update, UpdateContext
from partita.engine.parameters.optimizers.update_loop import loop_around


def bind_on_cuda(
    optimizer: Optimizer,
    values: Any,
    gradient: Any,
    state: Mapping[str, Any],
    *,
    accumulated: Any | None,
    copy: Any | None,
    nonfinite: Any,
    device: int | None,
) -> Update:
    """Prepares an update as `Optimizer.bind`, for arrays of numba.cuda on a device (None: in the simulator).

    `nonfinite`, int32 `[1]`, becomes 1 where a gradient is not finite, as the update cannot return that.
    """
    vectors = [state[name] for name in optimizer.state_names]
    arrays = [array for array in (values, gradient, *vectors, accumulated, copy) if array is not None]
    settings = optimizer._settings(UpdateContext(0))
    compiled = update_kernel(
        optimizer._arithmetic,
        optimizer._scale,
        len(vectors),
        len(settings),
        accumulates=accumulated is not None,
        copies=copy is not None,
    )
    compile_for(compiled, nonfinite, *arrays, 1.0, *settings, device=device)
    launch = launcher(compiled, len(values), device=device)

    def update(context: UpdateContext) -> bool:
        launch(nonfinite, *arrays, context.factor, *optimizer._settings(context))
        return True

    return update


@lru_cache(maxsize=64)
def update_kernel(
    arithmetic: Any, scale: Any, n_state: int, n_settings: int, *, accumulates: bool, copies: bool
) -> Any:
    """Returns a kernel (nonfinite, values, gradient, *state, accumulated, copy, factor, *settings), without
    the arrays that it does not have.
    """
    names = {"range": strided} | ({"nonfinite": _nonfinite} if SIMULATED else {})
    state, settings = (
        [f"{kind}{k}" for k in range(n)] for kind, n in (("state", n_state), ("set", n_settings))
    )
    beside = ["accumulated"] * accumulates + ["copy"] * copies
    text = f"""
def update({", ".join(["flag", "values", "gradient", *state, *beside, "factor", *settings])}):
    if not loop(
        values, gradient, ({"".join(f"{name}, " for name in state)}), {
        "accumulated" if accumulates else None
    }, {"copy" if copies else None}, factor, ({"".join(f"{name}, " for name in settings)}),
    ):
        flag[0] = 1
"""
    found: dict[str, Callable[..., None]] = {}
    exec(compile(text, "<generated update>", "exec"), found)
    loop = loop_around(on_device(arithmetic, **names), on_device(scale, **names))
    return kernel(found["update"], loop=on_device(loop, **names))


def _nonfinite(flag: Any, number: Any) -> Any:
    """`update_loop.nonfinite` in plain Python."""
    return flag if np.isfinite(number) else np.int32(1)
