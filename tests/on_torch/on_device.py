"""Plays the cases of `tests/kernels` on another device: what they hand to a kernel goes there, and comes
back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from types import ModuleType
from typing import Any
from unittest import mock

import pytest
import torch

from partita.engine.kernels import Array, Arrays, Call, Kernel, KernelContext, LossKernel, ThreadPool
from partita.engine.kernels import build as build_kernel
from partita.engine.kernels.tensors import array_of, numbers_of, on_host
from partita.layers import Loss
from partita.layers.box import Spans
from tests.kernels import cases

DEVICES = ["torch", pytest.param("cuda:0", marks=pytest.mark.gpu)]
"""Tensors in the host's memory, apart from its arrays; and a GPU."""


def tensors_at(device: str) -> torch.device:
    """The device of torch; skips the test where there is none."""
    if device != "torch" and not torch.cuda.is_available():
        pytest.skip(f"there is no CUDA device that torch {torch.__version__} can use")
    return torch.device("cpu" if device == "torch" else device)


@contextmanager
def on_device(device: str, *modules: ModuleType) -> Iterator[list[Kernel]]:
    """Meanwhile, `tests.kernels.cases` and these modules build kernels there; which they have built.

    Skips the test where there is no such device.
    """
    there, built = tensors_at(device), list[Kernel]()

    def build(context: KernelContext, arrays: Arrays, pool: ThreadPool | None = None) -> Kernel:
        kind = HostedLoss if isinstance(context.grid.layer, Loss) else Hosted
        made = kind(context, arrays, pool or ThreadPool(), there)
        built.append(made.kernel)
        return made

    with ExitStack() as patches:
        for module in (cases, *modules):
            patches.enter_context(mock.patch.object(module, "build", build))
        yield built
    assert built, "no kernel was played there"


class Hosted(Kernel):
    """A kernel on a device, for arrays of the host: they are taken there before each call, and back after."""

    def __init__(
        self, context: KernelContext, arrays: Arrays, pool: ThreadPool, device: torch.device
    ) -> None:
        super().__init__(context, arrays, pool)
        self._device, self._pairs = device, list[tuple[Array, torch.Tensor]]()
        there = Arrays(
            inputs=tuple(map(self._taken, arrays.inputs)),
            output=self._taken(arrays.output),
            grad_output=None if arrays.grad_output is None else self._taken(arrays.grad_output),
            grad_inputs=tuple(
                None if errors is None else self._taken(errors) for errors in arrays.grad_inputs
            ),
            parameters=tuple(map(self._taken, arrays.parameters)),
            summaries=None if arrays.summaries is None else self._taken(arrays.summaries),
        )
        self.kernel = build_kernel(replace(context, device="torch"), there, pool)
        self.gradient_by_rows = self.kernel.gradient_by_rows

    @property
    def gradient_dtype(self) -> Any:
        return self.kernel.gradient_dtype

    def forward(self, *, block: tuple[int, int] | None = None, first: bool = True, last: bool = True) -> Call:
        return self._around(self.kernel.forward(block=block, first=first, last=last))

    def summarise(self, piece: int) -> Call:
        return self._around(self.kernel.summarise(piece))

    def forward_rows(self, rows: Spans) -> Call:
        return self._around(self.kernel.forward_rows(rows))

    def backward_activation(self) -> Call:
        return self._around(self.kernel.backward_activation())

    def backward_input(self, source: int, rows: Spans, *, accumulate: bool) -> Call:
        return self._around(self.kernel.backward_input(source, rows, accumulate=accumulate))

    def backward_parameters(
        self, out: Sequence[Array], rows: tuple[int, int] | None = None, *, accumulate: bool = False
    ) -> Call:
        there = [self._taken(array) for array in out]
        return self._around(self.kernel.backward_parameters(there, rows, accumulate=accumulate))

    def _taken(self, array: Array) -> Array:
        tensor = on_host(array).to(self._device, copy=True)
        self._pairs.append((array, tensor))
        return array_of(tensor)

    def _around(self, call: Call) -> Call:
        def around() -> None:
            for array, tensor in self._pairs:
                tensor.copy_(on_host(array))
            call()
            for array, tensor in self._pairs:
                array[...] = numbers_of(tensor.cpu())

        return around


class HostedLoss(Hosted, LossKernel):
    """The same for a loss."""

    def metrics(self, count: int) -> tuple[float, int]:
        assert isinstance(self.kernel, LossKernel)
        return self.kernel.metrics(count)
