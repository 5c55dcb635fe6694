"""The one tensor of what a module returns that becomes the output of a network."""

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
    """Lets a module return the chosen tensor alone.

    Args:
        module: whose `forward` is replaced.
        output: "logits" for example, or a number; None for the only tensor that it returns.
    """
    forward = module.forward

    @functools.wraps(forward)
    def chosen(*args: Any, **named: Any) -> torch.Tensor:
        return one_of(forward(*args, **named), output)

    module.forward = chosen


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
