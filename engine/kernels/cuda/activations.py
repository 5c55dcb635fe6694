"""Activation functions over whole tensors, in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch

from partita.engine.kernels.kernel import Call, no_op

_VALUES: Final[dict[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "relu": torch.relu_,
    "sigmoid": torch.sigmoid_,
    "tanh": torch.tanh_,
}
_SLOPES: Final[dict[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "linear": torch.ones_like,
    "relu": lambda state: (state > 0).to(state.dtype),
    "sigmoid": lambda state: state * (1 - state),
    "tanh": lambda state: 1 - state * state,
}


def activate(function: str, sums: torch.Tensor) -> None:
    """Replaces sums by states."""
    if function != "linear":
        _VALUES[function](sums)


def slope_times(function: str, state: torch.Tensor, error: torch.Tensor, wide: torch.dtype) -> torch.Tensor:
    """`error * slope(state)` in a type that sums are taken in."""
    return _SLOPES[function](state.to(wide)).mul_(error)


def multiply_by_slope(function: str, state: torch.Tensor, error: torch.Tensor, wide: torch.dtype) -> Call:
    """Prepares to turn errors of states into errors of sums, in place."""
    if function == "linear":
        return no_op

    def call() -> None:
        error.copy_(slope_times(function, state, error, wide))

    return call
