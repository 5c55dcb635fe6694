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
    "relu": lambda output: (output > 0).to(output.dtype),
    "sigmoid": lambda output: output * (1 - output),
    "tanh": lambda output: 1 - output * output,
}


def activate(function: str, sums: torch.Tensor) -> None:
    """Replaces sums by activations."""
    if function != "linear":
        _VALUES[function](sums)


def slope_times(function: str, output: torch.Tensor, grad: torch.Tensor, wide: torch.dtype) -> torch.Tensor:
    """Computes `grad * slope(output)` in the type of sums."""
    return _SLOPES[function](output.to(wide)).mul_(grad)


def multiply_by_slope(function: str, output: torch.Tensor, grad: torch.Tensor, wide: torch.dtype) -> Call:
    """Prepares `Kernel.backward_activation`: multiplies the gradient by the slope, in place."""
    if function == "linear":
        return no_op

    def call() -> None:
        grad.copy_(slope_times(function, output, grad, wide))

    return call
