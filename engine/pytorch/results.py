"""The tensors of what a module returns that become the output of a network, and its loss."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
from torch.utils import _pytree as pytree

Choice: TypeAlias = str | int | None
"""A name or a number among several results; None where there is one tensor."""


class NoSuchResult(ValueError):
    """A module does not return one tensor, or not the one that was chosen."""


def return_one(module: torch.nn.Module, output: Choice) -> None:
    """Lets a module return the chosen tensor, and behind it the loss where it returns one.

    Args:
        module: whose `forward` is replaced.
        output: "logits" for example, or a number; None for the only tensor that it returns
            beside its loss, a number for all examples.
    """
    forward = module.forward

    @functools.wraps(forward)
    def chosen(*args: Any, **named: Any) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        returned = forward(*args, **named)
        return _beside_loss(returned, output) or one_of(returned, output)

    module.forward = chosen


def _beside_loss(returned: Any, output: Choice) -> tuple[torch.Tensor, torch.Tensor] | None:
    """The chosen tensor and the loss of a module that returns both; None for others."""
    if isinstance(returned, torch.Tensor):
        return None
    fields = _fields(returned)
    loss = _name_of_loss(fields)
    others = {name: one for name, one in fields.items() if name != loss}
    if loss is None or output == loss or not any(isinstance(one, torch.Tensor) for one in others.values()):
        return None
    return one_of(others, output), fields[loss]


def loss_of(returned: Any) -> torch.Tensor:
    """Returns the loss that a module returns, alone or beside other results."""
    fields = {} if isinstance(returned, torch.Tensor) else _fields(returned)
    name = _name_of_loss(fields)
    found: torch.Tensor = one_of(returned, None) if name is None else fields[name]
    return found


def _name_of_loss(fields: Mapping[Any, Any]) -> Any:
    """The name of the only number for all examples, or "loss" among several; None if there is none."""
    tensors = {name: one for name, one in fields.items() if isinstance(one, torch.Tensor)}
    losses = [name for name, one in tensors.items() if not one.dim() and one.is_floating_point()]
    return "loss" if "loss" in losses else losses[0] if len(losses) == 1 else None


def one_of(returned: Any, output: Choice) -> torch.Tensor:
    """Returns one tensor of a module's result.

    Raises:
        NoSuchResult: it has several tensors and none was chosen, or the chosen one is no tensor.
    """
    if isinstance(returned, torch.Tensor) and output is None:
        return returned
    fields = _fields(returned)
    tensors = {name: one for name, one in fields.items() if isinstance(one, torch.Tensor)}
    n = sum(isinstance(one, torch.Tensor) for one in pytree.tree_leaves(list(fields.values())))
    if output is None and len(tensors) == n == 1:
        return next(iter(tensors.values()))
    if output in tensors:
        return tensors[output]
    listed = ", ".join(
        f"{name!r} {tuple(one.shape)}"
        if isinstance(one, torch.Tensor)
        else f"{name!r} ({type(one).__name__})"
        for name, one in fields.items()
    )
    if output is None:
        advice = f"choose one, output={next(iter(tensors))!r}" if tensors else "let its forward return one"
        raise NoSuchResult(f"the module returns {n} tensors: {listed or type(returned).__name__}; {advice}")
    raise NoSuchResult(f"output={output!r} is no tensor that the module returns: {listed or 'one tensor'}")


def _fields(returned: Any) -> dict[Any, Any]:
    """The parts of a result by their names, or by their numbers; those that are None are left out."""
    found: dict[Any, Any] = {}
    if isinstance(returned, Mapping):
        found = dict(returned)
    elif dataclasses.is_dataclass(returned) and not isinstance(returned, type):
        found = {one.name: getattr(returned, one.name) for one in dataclasses.fields(returned)}
    elif isinstance(returned, tuple) and hasattr(returned, "_asdict"):
        found = returned._asdict()
    elif isinstance(returned, tuple | list):
        found = dict(enumerate(returned))
    return {name: one for name, one in found.items() if one is not None}
