"""Tensors that a module is called with: in the order of its arguments, or by their names."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch

Arguments: TypeAlias = "Sequence[torch.Tensor] | Mapping[str, torch.Tensor]"
"""A tensor of examples for each input."""


def tensors_of(given: Arguments) -> list[torch.Tensor]:
    """The tensors, in their order."""
    return list(given.values() if isinstance(given, Mapping) else given)


def call(module: torch.nn.Module, given: Arguments) -> Any:
    """Returns what a module returns for these arguments."""
    return module(**given) if isinstance(given, Mapping) else module(*given)


def in_the_order_of(module: torch.nn.Module, given: Arguments) -> Arguments:
    """Returns arguments with names in the order in which `forward` declares them.

    Raises:
        ValueError: it has no argument of such a name.
    """
    if not isinstance(given, Mapping):
        return given
    names = list(inspect.signature(module.forward).parameters)
    for name in given:
        if name not in names:
            raise ValueError(
                f"{type(module).__name__}.forward has no argument {name!r}; it has {', '.join(names)}"
            )
    return {name: given[name] for name in names if name in given}
