"""A small program of operations of ATen over tensors (examples, d0, d1, ...): values, with no network.

Registers hold the inputs, then the constants, then the parameters, then the result of each call in its order;
the last one is the result. It can be pickled, compared and hashed.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy.typing as npt
import torch


class Constant:
    """An array that is part of a program, in the module's type. Two are equal if their numbers are."""

    def __init__(self, tensor: torch.Tensor) -> None:
        """Copies the numbers."""
        self.values: npt.NDArray[Any] = tensor.detach().cpu().contiguous().numpy().copy()
        text = f"{self.values.dtype}{list(self.values.shape)}"
        self._text = f"{text} #{hashlib.sha256(self.values.tobytes()).hexdigest()[:12]}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Constant) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __repr__(self) -> str:
        return f"<{self._text}>"


@dataclass(frozen=True)
class Register:
    """The place of a tensor."""

    number: int


@dataclass(frozen=True)
class Examples:
    """The number of examples of a step, times a factor, in the place of an extent."""

    factor: int


@dataclass(frozen=True)
class Rows:
    """The number of rows of a step, in the place of an extent."""


@dataclass(frozen=True)
class ComputeType:
    """The type of the numbers of a step, in the place of a floating-point type."""


Argument: TypeAlias = Any
"""A register, a number, a name, an extent or a type, or a tuple of them."""

PART: Final = "rows"
"""Operation of a call that takes the rows of a step from its argument, along the dimension that follows."""
ITEM: Final = "item"
"""Operation of a call that takes one of the results of another."""


@dataclass(frozen=True)
class Call:
    """A call of an operation.

    Args:
        operation: "add.Tensor" for `torch.ops.aten.add.Tensor`, or `PART`, or `ITEM`.
        args: its arguments.
        named: its arguments by name.
    """

    operation: str
    args: tuple[Argument, ...]
    named: tuple[tuple[str, Argument], ...] = ()


@dataclass(frozen=True)
class Input:
    """An input of the program, an array of a layer.

    Args:
        axes: for each dimension behind the examples, the axis of the array; None for one of extent 1 that
            the array does not have.
        row: the axis along which the rows of a step are a part; None where all of the array is needed.
    """

    axes: tuple[int | None, ...]
    row: int | None


@dataclass(frozen=True)
class Held:
    """A parameter of the program.

    Args:
        name: in the layer.
        shape: of it.
        trainable: whether it learns.
    """

    name: str
    shape: tuple[int, ...]
    trainable: bool


@dataclass(frozen=True)
class Program:
    """The program of a layer.

    Args:
        inputs: the arrays that it reads.
        constants: arrays that are part of it.
        parameters: numbers that may learn.
        calls: the operations.
        order: the dimensions of the result behind the examples, in the order of the layer's axes.
        shape: extents of the layer.
        rows: whether a part of the layer's axis 0 can be computed alone.
        places: whether each number of the result needs those of its own place alone, wherever that is.
        operations: floating-point operations for each number of the result.
    """

    inputs: tuple[Input, ...]
    constants: tuple[Constant, ...]
    parameters: tuple[Held, ...]
    calls: tuple[Call, ...]
    order: tuple[int, ...]
    shape: tuple[int, ...]
    rows: bool
    places: bool
    operations: float = field(compare=False)

    def __repr__(self) -> str:
        return " ".join(one.operation.partition(".")[0] for one in self.calls if one.operation != PART)

    def run(
        self,
        inputs: Sequence[torch.Tensor],
        parameters: Sequence[torch.Tensor],
        *,
        examples: int,
        rows: tuple[int, int],
    ) -> torch.Tensor:
        """Returns the result, `[rows, other axes ..., example]`.

        Args:
            inputs: arrays `[axes ..., example]`: of the rows alone where these are axis 0, else whole.
            parameters: whole.
            examples: how many of the examples are computed.
            rows: `[start, stop)` of the layer.
        """
        like = inputs[0]
        registers: list[Any] = [
            _read(one, array[..., :examples], rows) for one, array in zip(self.inputs, inputs, strict=True)
        ]
        registers += [_constant(one, like) for one in self.constants]
        registers += [
            given.reshape(one.shape) for one, given in zip(self.parameters, parameters, strict=True)
        ]
        for call in self.calls:
            registers.append(_called(call, registers, examples, rows, like.dtype))
        found: torch.Tensor = registers[-1]
        shaped = found.permute(*(one + 1 for one in self.order), 0)
        return shaped if self.order else shaped[None]


def _read(given: Input, array: torch.Tensor, rows: tuple[int, int]) -> torch.Tensor:
    """An array as a tensor (examples, d0, d1, ...); of the rows alone along the axis that they cut."""
    if given.row:
        array = array.narrow(given.row, rows[0], rows[1] - rows[0])
    present = [axis for axis in given.axes if axis is not None]
    left = [axis for axis in range(array.dim() - 1) if axis not in present]
    turned = array.permute(-1, *present, *left)
    shape, extents = [len(turned)], iter(turned.shape[1:])
    shape += [1 if axis is None else next(extents) for axis in given.axes]
    return turned if turned.dim() == len(shape) == len(present) + 1 else turned.reshape(shape)


def _constant(constant: Constant, like: torch.Tensor) -> torch.Tensor:
    tensor = torch.from_numpy(constant.values).to(like.device)
    if tensor.is_complex():
        return tensor.to(like.dtype.to_complex())
    return tensor.to(like.dtype) if tensor.is_floating_point() else tensor


def _called(
    call: Call, registers: Sequence[Any], examples: int, rows: tuple[int, int], precision: torch.dtype
) -> Any:
    """The result of a call."""

    def filled(argument: Argument) -> Any:
        if isinstance(argument, Register):
            return registers[argument.number]
        if isinstance(argument, Examples):
            return examples * argument.factor
        if isinstance(argument, Rows):
            return rows[1] - rows[0]
        if isinstance(argument, ComputeType):
            return precision
        return [filled(one) for one in argument] if isinstance(argument, tuple) else argument

    args = [filled(one) for one in call.args]
    if call.operation == PART:
        return args[0].narrow(args[1], rows[0], rows[1] - rows[0])
    if call.operation == ITEM:
        return operator.getitem(args[0], args[1])
    name, _, overload = call.operation.partition(".")
    if name == "view_as_complex":
        args = [args[0].contiguous()]  # the two parts of a number lie side by side
    operation = getattr(getattr(torch.ops.aten, name), overload)
    return operation(*args, **{key: filled(one) for key, one in call.named})
