"""The module of PyTorch in a user's file, the network that it becomes, and sentences on how."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Self

import torch

from partita.engine.cli.loading import UserFile
from partita.engine.profile.beside import Beside
from partita.engine.profile.beside_torch import beside_torch
from partita.engine.profile.profile import Profile
from partita.engine.pytorch.from_torch import in_training
from partita.engine.pytorch.imported_network import ImportedNetwork
from partita.engine.pytorch.torch_module import StandIn, TorchModule
from partita.engine.run.phases import OnPhase
from partita.layers.graph import Graph
from partita.layers.text import counted

NAMES: Final = ("module", "model")
"""Names that a module has in a file, if none is given."""

TYPES: Final = {name: getattr(torch, name) for name in ("float32", "float64", "int64", "int32")}
"""Types of an input."""

_INPUT: Final = re.compile(r"(?:(\w+)=)?(\d+(?:x\d+)*)(?::(\w+))?")
EXAMPLES: Final = 2
"""Examples by which a module becomes a network: more do not change it."""


@dataclass(frozen=True)
class FoundModule:
    """A module, and the examples of a minibatch.

    Args:
        given: the module; its network has parts that stay whole where operations have no layers.
        batch: examples of the inputs that were given.
    """

    given: TorchModule
    batch: int

    @classmethod
    def of(cls, users: UserFile, *, module: str | None, inputs: Sequence[str], loss: StandIn | None) -> Self:
        """Finds the module of a file, and makes a network of it; the arguments are options of `FromTorch`.

        Raises:
            ValueError: there is no module or more than one, an input is missing or unreadable, or the module
                cannot be a network.
            UserCodeError: the user's code raised.
        """
        found = module_of(users, module)
        arguments = [read_input(text) for text in inputs] or example_args(users)
        example, batch = in_order(found, arguments)
        given = TorchModule(found, example, loss=loss, opaque=True)
        try:
            stand_in = given.stand_in
        except ValueError as error:
            _explain_a_loss(found, example, error)
            raise
        if loss is not None and stand_in is None:
            raise ValueError(f"the module returns its loss; leave --loss {loss} out")
        return cls(given, batch)

    @property
    def network(self) -> ImportedNetwork:
        """The network that the module became, with its loss."""
        return self.given.network

    @cached_property
    def remarks(self) -> tuple[str, ...]:
        """Sentences on the loss, and on what is not cut."""
        stand_in = _stand_in(self.given)
        found = [f"the loss is a stand-in for the module's own: {stand_in}"] if stand_in else []
        graph = self.network.graph()
        kept = {grid.name: _work(graph, grid.name) for grid in graph.computed if grid.layer.kind == "Torch"}
        if kept:
            share = sum(kept.values()) / sum(_work(graph, grid.name) for grid in graph.computed)
            reasons = "; ".join(
                dict.fromkeys(str(one) for some in self.network.kept.values() for one in some)
            )
            which = "stays whole, on one machine" if len(kept) == 1 else "stay whole, each on one machine"
            found.append(
                f"{', '.join(kept)} {which}, with {share:.0%} of the operations that PyTorch counts, because "
                f"there are no layers for {reasons}"
            )
        return tuple(found)

    def beside(self, profile: Profile, on_phase: OnPhase) -> tuple[Beside, ...]:
        """Measures PyTorch's own ways to train the module; see `beside_torch`."""
        return beside_torch(self.given, profile, on_phase=on_phase)


def module_of(users: UserFile, written: str | None) -> torch.nn.Module:
    """Returns the module of a file: by what is written, by a usual name, or the only one.

    Raises:
        ValueError: there is none, or more than one.
        UserCodeError: the user's code raised.
    """
    if written is not None:
        return _made(users, users.evaluated(written), written)
    names = vars(users.module)
    for name in NAMES:
        if name in names:
            return _made(users, names[name], name)
    own = {name: one for name, one in names.items() if _is_module(one, users)}
    found = {name: one for name, one in own.items() if not isinstance(one, type)} or own
    if not found:
        raise ValueError(
            f"{users.path} defines no module of PyTorch; say what it is with --module, for example "
            '--module "Net(width=64)"'
        )
    if len(found) > 1:
        raise ValueError(
            f"{users.path} defines several modules: {', '.join(found)}; say which with --module NAME"
        )
    ((name, value),) = found.items()
    return _made(users, value, name)


def _is_module(value: object, users: UserFile) -> bool:
    """Returns whether a value of a file is a module, or a class of modules that the file itself defines."""
    if isinstance(value, type):
        return issubclass(value, torch.nn.Module) and value.__module__ == users.module.__name__
    return isinstance(value, torch.nn.Module)


def _made(users: UserFile, value: Any, name: str) -> torch.nn.Module:
    """Returns a module, called for where `value` is a class or a function."""
    if not isinstance(value, torch.nn.Module):
        if not callable(value):
            raise ValueError(f"{name} in {users.path} is {value!r}; give a module, or what makes one")
        _check_no_arguments(users, value, name)
        value = users.called(value, f"{name}()")
    if not isinstance(value, torch.nn.Module):
        raise ValueError(f"{name}() in {users.path} returns a {type(value).__name__}; return a module")
    return value


def _check_no_arguments(users: UserFile, make: Callable[..., Any], name: str) -> None:
    try:
        inspect.signature(make).bind()
    except TypeError as error:
        raise ValueError(
            f"{name} in {users.path} cannot be called so: {error}; write the call out, for example "
            f'--module "{name}(...)"'
        ) from None


@dataclass(frozen=True)
class Argument:
    """An input of a module.

    Args:
        name: of the argument; "" for the next one.
        shape: with the examples first.
        dtype: of its numbers.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def examples(self) -> torch.Tensor:
        """Two examples: zeros of whole numbers, which every table has, or drawn numbers."""
        shape = (EXAMPLES, *self.shape[1:])
        if not self.dtype.is_floating_point:
            return torch.zeros(shape, dtype=self.dtype)
        return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(self.dtype)


def read_input(text: str) -> Argument:
    """Reads an input as the command line has it: `32x3x224x224`, `tokens=16x128:int64`.

    Raises:
        ValueError: it cannot be read.
    """
    found = _INPUT.fullmatch(text)
    if found is None or (found[3] or "float32") not in TYPES:
        raise ValueError(
            f"--input {text} is no shape; write for example 32x3x224x224, or tokens=16x128:int64 with one of "
            f"the types {', '.join(TYPES)}"
        )
    shape = tuple(map(int, found[2].split("x")))
    return Argument(found[1] or "", shape, TYPES[found[3] or "float32"])


def example_args(users: UserFile) -> list[Argument]:
    """The arguments in `example_args` of a file: a tensor or several, or a function that returns them.

    Raises:
        ValueError: there are none, or they are no tensors with examples.
        UserCodeError: the user's code raised.
    """
    found = getattr(users.module, "example_args", None)
    if found is None:
        raise ValueError(
            f"{users.path} does not say what the module takes: give --input with the examples of a "
            "minibatch first, for example --input 32x3x224x224, or define example_args"
        )
    if callable(found):
        found = users.called(found, "example_args()")
    tensors = (found,) if isinstance(found, torch.Tensor) else tuple(found)
    if not tensors or not all(isinstance(one, torch.Tensor) and one.dim() for one in tensors):
        raise ValueError(
            f"example_args in {users.path} are no tensors with examples in axis 0; give one for each input"
        )
    return [Argument("", tuple(one.shape), one.dtype) for one in tensors]


def in_order(module: torch.nn.Module, given: Iterable[Argument]) -> tuple[tuple[torch.Tensor, ...], int]:
    """Puts inputs in the order of `forward`; returns two examples of each, and how many were given.

    Raises:
        ValueError: `forward` has no such argument, or the inputs have different numbers of examples.
    """
    kind, names = type(module).__name__, list(inspect.signature(module.forward).parameters)
    placed: dict[int, Argument] = {}
    for number, one in enumerate(given):
        if one.name and one.name not in names:
            raise ValueError(f"{kind}.forward has no argument {one.name!r}; it has {', '.join(names)}")
        placed[names.index(one.name) if one.name else number] = one
    if sorted(placed) != list(range(len(placed))):
        lacking = next(number for number in range(len(names)) if number not in placed)
        raise ValueError(f"{kind}.forward takes {names[lacking]!r} before; give an --input for it, too")
    inputs = [placed[number] for number in range(len(placed))]
    batches = {one.shape[0] for one in inputs}
    if len(batches) > 1:
        raise ValueError(
            f"the inputs have {' and '.join(map(str, sorted(batches)))} examples in axis 0; give all as many"
        )
    return tuple(one.examples for one in inputs), batches.pop()


def _explain_a_loss(module: torch.nn.Module, given: tuple[torch.Tensor, ...], error: ValueError) -> None:
    """Raises ValueError where a module that cannot be a network returns one number: its loss."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        found = in_training(module)(*given)
    if isinstance(found, torch.Tensor) and not found.dim():
        raise ValueError(
            f"{type(module).__name__}.forward returns one number for all examples, as a loss is; let it "
            f"return the scores, and a loss takes its place ({error})"
        ) from error


def _stand_in(given: TorchModule) -> str:
    """Describes the loss in the place of the module's own; "" if that is used."""
    shape = given.network.output.shape
    if given.stand_in == "squared-error":
        return f"the squared error of {counted(math.prod(shape), 'number')}"
    classes = f"softmax cross-entropy over the {shape[-1]:,} classes of the last dimension"
    return classes if given.stand_in else ""


def _work(graph: Graph, name: str) -> float:
    return graph[name].flops_per_node * graph[name].n_nodes
