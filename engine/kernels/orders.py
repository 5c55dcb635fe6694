"""Tensors of one shape whose axes lie in different orders in memory: copies from one order to another.

The engine's arrays have examples last; functions of PyTorch want them first. Such a copy transposes matrices.
Tiles that fit the registers do so in 1.2 to 3 times the time of a plain copy, PyTorch's own loops in 4 to 15
times (one core of an AMD Zen 4, float32). Importing this imports torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from partita.engine.kernels.calls import bound
from partita.engine.kernels.kernel import Array
from partita.engine.kernels.tiles.transposition import transpose
from partita.engine.numerics import compiled

_LEAST: Final = 1 << 12
"""Numbers from which on a copy by tiles is worth its call."""
_TYPES: Final = (torch.float32, torch.float64)


class _Matrices(NamedTuple):
    """A copy as so many transposed matrices.

    Args:
        n: number of matrices.
        step, out_step: from one to the next, in the source and in the target.
        rows, columns: of a matrix of the source, whose columns are contiguous.
        stride, out_stride: from one row to the next, in the source and in the target.
    """

    n: int
    step: int
    out_step: int
    rows: int
    columns: int
    stride: int
    out_stride: int


def prepare(dtype: np.dtype[Any], size: int) -> None:
    """Compiles what `copy` needs for arrays of this type and of at least this size."""
    if size >= _LEAST and dtype in (np.float32, np.float64):
        empty = np.zeros(0, dtype)
        bound(_transpose_all, empty, empty, *_Matrices(0, 0, 0, 0, 0, 0, 0))


def copy(target: torch.Tensor, source: torch.Tensor) -> None:
    """Writes a tensor without a history into another one of its shape, whose numbers do not overlap."""
    matrices = _matrices(target, source)
    if matrices is None:
        target.copy_(source)
    else:
        _transpose_all(_numbers(source), _numbers(target), *matrices)


class Copy:
    """Copies tensors without a history into one place, whose layout is examined once.

    Between threads that copy at the same time, this is faster than `copy`: it calls no operation of PyTorch,
    each of which releases the GIL.
    """

    def __init__(self, place: torch.Tensor, axes: Sequence[int]) -> None:
        """Examines the place.

        Args:
            place: receives the numbers; overlaps no source.
            axes: those of a source, in the order of the place's.
        """
        self._place, self._axes = place, tuple(axes)
        self._numbers = _numbers(place) if place.numel() else np.zeros(0)
        self._known: dict[tuple[int, ...], _Matrices | None] = {}

    def __call__(self, source: torch.Tensor) -> None:
        """Writes a source, whose axes are permuted."""
        strides = source.stride()
        if strides not in self._known:
            dense = source.is_contiguous() or source.is_contiguous(memory_format=torch.channels_last)
            self._known[strides] = _matrices(self._place, source.permute(self._axes)) if dense else None
        matrices = self._known[strides]
        if matrices is None:
            copy(self._place, source.permute(self._axes))
        else:
            _transpose_all(source.numpy().ravel(order="K"), self._numbers, *matrices)


def contiguous(x: torch.Tensor) -> torch.Tensor:
    """Returns a tensor in the order of its axes, with a history; the same one where it lies so already."""
    if x.is_contiguous():
        return x
    found: torch.Tensor = _Contiguous.apply(x)  # type: ignore[no-untyped-call]
    return found


def like(x: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """Returns a contiguous tensor without a history in the order of axes that strides have; the same tensor
    where these leave the last axis innermost.
    """
    if x.dim() < 2 or strides[-1] == 1:
        return x
    order = sorted(range(x.dim()), key=lambda axis: -strides[axis])
    back = sorted(range(x.dim()), key=order.__getitem__)
    return _in_order(x.permute(order)).permute(back)


class _Contiguous(torch.autograd.Function):
    """A copy in another order; its gradient is that of the source, in any order."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        """Copies the numbers into the order of the axes."""
        return _in_order(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        """Returns the gradient as it is."""
        return grad


def _in_order(x: torch.Tensor) -> torch.Tensor:
    found = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    copy(found, x)
    return found


def _matrices(target: torch.Tensor, source: torch.Tensor) -> _Matrices | None:
    """The copy as transposed matrices; None where PyTorch copies."""
    if target.dtype != source.dtype or target.dtype not in _TYPES or target.device.type != "cpu":
        return None
    if target.numel() < _LEAST or source.stride(-1) == 1:
        return None
    axes = _joined(target.shape, source.stride(), target.stride())
    innermost = [k for k, (_, stride, _) in enumerate(axes) if stride == 1]
    if len(axes) not in (2, 3) or not innermost or innermost[0] == len(axes) - 1 or axes[-1][2] != 1:
        return None
    columns, _, out_stride = axes.pop(innermost[0])
    rows, stride, _ = axes.pop()
    n, step, out_step = axes[0] if axes else (1, 0, 0)
    return _Matrices(n, step, out_step, rows, columns, stride, out_stride)


def _joined(
    shape: torch.Size, strides: tuple[int, ...], out_strides: tuple[int, ...]
) -> list[tuple[int, int, int]]:
    """Axes as (size, stride in the source, stride in the target), where two that lie in one line in both are
    one, and those of one element are left out.
    """
    axes: list[tuple[int, int, int]] = []
    for size, stride, out_stride in reversed(list(zip(shape, strides, out_strides, strict=True))):
        if size == 1:
            continue
        if axes and (stride, out_stride) == (axes[0][0] * axes[0][1], axes[0][0] * axes[0][2]):
            axes[0] = (size * axes[0][0], axes[0][1], axes[0][2])
        else:
            axes.insert(0, (size, stride, out_stride))
    return axes


def _numbers(x: torch.Tensor) -> Array:
    """The memory from a tensor's first number to its last, flat."""
    reach = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    found: Array = torch.as_strided(x.detach(), (reach + 1,), (1,)).numpy()
    return found


@compiled
def _transpose_all(
    source: Array,
    target: Array,
    n: int,
    step: int,
    out_step: int,
    rows: int,
    columns: int,
    stride: int,
    out_stride: int,
) -> None:
    for k in range(n):
        transpose(source, k * step, stride, target, k * out_step, out_stride, rows, columns)
