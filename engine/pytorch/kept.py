"""Parts of a module that stay as they are: each becomes one layer, `Torch`, in the network of the rest."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from partita.engine.pytorch.example_args import Arguments, call, tensors_of


@torch.library.custom_op("partita::kept", mutates_args=())
def _kept(path: str, shape: Sequence[int], inputs: Sequence[torch.Tensor]) -> torch.Tensor:
    """Stands for a part in a graph: a tensor of its output's shape. The graph is never run."""
    return torch.empty((len(inputs[0]), *shape))


@_kept.register_fake
def _(path: str, shape: Sequence[int], inputs: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.empty((inputs[0].shape[0], *shape))


@dataclass(frozen=True)
class Call:
    """A call of a part that was seen.

    Args:
        given: arguments, with the number of an input in the place of each tensor.
        shape: of the result for one example; None where the call is none of examples to one tensor.
    """

    given: tuple[Any, dict[str, Any]]
    shape: tuple[int, ...] | None


@dataclass(frozen=True)
class Input:
    """The place of a tensor in the arguments of a call."""

    number: int


class Bound(nn.Module):
    """A part that takes its tensors alone; its other arguments are those of the call that was seen."""

    def __init__(self, module: nn.Module, given: tuple[Any, dict[str, Any]]) -> None:
        """Keeps the module and the arguments."""
        super().__init__()
        self.module, self._given = module, given

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Calls the part with its other arguments, too."""
        filled = pytree.tree_map_only(
            Input, lambda one: inputs[one.number], self._given, is_leaf=lambda one: isinstance(one, Input)
        )
        found: torch.Tensor = self.module(*filled[0], **filled[1])
        return found


def calls_of(module: nn.Module, example_args: Arguments) -> dict[str, Call]:
    """Runs a module, and returns the call of each part that is called once."""
    seen: dict[str, list[Call]] = {}
    n = len(tensors_of(example_args)[0])

    def watch(path: str) -> Any:
        def note(part: nn.Module, args: Any, named: Any, output: Any) -> None:
            tensors = [one for one in pytree.tree_leaves((args, named)) if isinstance(one, torch.Tensor)]
            batched = all(one.dim() and len(one) == n for one in tensors) and bool(tensors)
            fits = batched and isinstance(output, torch.Tensor) and output.dim() > 1 and len(output) == n
            numbers = iter(range(len(tensors)))
            given = pytree.tree_map_only(torch.Tensor, lambda _: Input(next(numbers)), (args, named))
            seen.setdefault(path, []).append(Call(given, tuple(output.shape[1:]) if fits else None))

        return note

    handles = [
        part.register_forward_hook(watch(path), with_kwargs=True)
        for path, part in module.named_modules()
        if path
    ]
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            call(module, example_args)
    finally:
        for handle in handles:
            handle.remove()
    return {path: found[0] for path, found in seen.items() if len(found) == 1}


def part_around(path: str, calls: Mapping[str, Call]) -> str:
    """The path of the smallest part around a module, or it itself, that can stay as it is; "" for none."""
    while path and (path not in calls or calls[path].shape is None):
        path = path.rpartition(".")[0]
    return path


def stand_for(module: nn.Module, parts: Iterable[str], calls: Mapping[str, Call]) -> dict[str, Bound]:
    """Lets operations `partita::kept` stand for parts of a module, and returns these parts as they were."""
    found = {}
    for path in parts:
        part, shape = module.get_submodule(path), calls[path].shape
        assert shape is not None, path
        found[path] = Bound(copy.deepcopy(part), calls[path].given)
        part.forward = partial(_stand, path, list(shape))
    return found


def _stand(path: str, shape: list[int], *args: Any, **named: Any) -> torch.Tensor:
    tensors = [one for one in pytree.tree_leaves((args, named)) if isinstance(one, torch.Tensor)]
    found: torch.Tensor = torch.ops.partita.kept(path, shape, tensors)
    return found
