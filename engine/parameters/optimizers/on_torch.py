"""Optimizers on a device of torch: the arithmetic of one number, on whole tensors.

Results agree with a CPU's loop within rounding. Importing this imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import FunctionType, SimpleNamespace
from typing import Any

import torch

from partita.engine.parameters.optimizers.optimizer import Optimizer, Update, UpdateContext


def bind_on_torch(
    optimizer: Optimizer,
    values: torch.Tensor,
    gradient: torch.Tensor,
    state: Mapping[str, torch.Tensor],
    *,
    accumulated: torch.Tensor | None,
    copy: torch.Tensor | None,
    nonfinite: torch.Tensor,
) -> Update:
    """Prepares an update as `Optimizer.bind`.

    `nonfinite`, bool `[1]`, becomes true where a gradient is not finite, as the update cannot return that
    without waiting.
    """
    vectors = tuple(state[name] for name in optimizer.state_names)
    arithmetic, scale = _on_tensors(optimizer._arithmetic), _on_tensors(optimizer._scale)

    def update(context: UpdateContext) -> bool:
        settings = optimizer._settings(context)
        found = scale(gradient.to(values.dtype), values, context.factor, settings, float)
        nonfinite.logical_or_(found.isfinite().all().logical_not())
        if accumulated is not None:
            accumulated.add_(found)
        values.copy_(arithmetic(values, found, vectors, slice(None), settings, float))
        if copy is not None:
            copy.copy_(values)
        return True

    return update


def _on_tensors(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function's code, in which the square root and the maximum are those of tensors."""
    assert isinstance(function, FunctionType)
    names = {"math": SimpleNamespace(sqrt=torch.sqrt), "max": lambda value, least: value.clamp(min=least)}
    return FunctionType(
        function.__code__, function.__globals__ | names, function.__name__, None, function.__closure__
    )
