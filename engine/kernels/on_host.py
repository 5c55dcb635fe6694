"""Kernels of the host for arrays of a device: what a call reads is copied to the host, what it writes back.

For layers whose arithmetic is compiled for a CPU alone: node definitions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from partita.engine.kernels.calls import sequence
from partita.engine.kernels.kernel import Array, Arrays, Call, Kernel, KernelContext
from partita.engine.kernels.tensors import numbers_of, on_host, tensor_of
from partita.engine.kernels.thread_pool import ThreadPool
from partita.layers.box import Spans

Make = Callable[[KernelContext, Arrays, ThreadPool], Kernel]


class HostKernel(Kernel):
    """A kernel on the host, with copies of a device's arrays."""

    def __init__(self, make: Make, context: KernelContext, arrays: Arrays, pool: ThreadPool) -> None:
        super().__init__(context, arrays, pool)
        self._here = Arrays(
            inputs=tuple(map(_copy, arrays.inputs)),
            output=_copy(arrays.output),
            grad_output=None if arrays.grad_output is None else _copy(arrays.grad_output),
            grad_inputs=tuple(None if one is None else _copy(one) for one in arrays.grad_inputs),
            parameters=tuple(map(_copy, arrays.parameters)),
        )
        self._kernel = make(replace(context, device="cpu"), self._here, pool)
        self.gradient_by_rows = self._kernel.gradient_by_rows

    def forward(self, *, block: tuple[int, int] | None = None, first: bool = True, last: bool = True) -> Call:
        """Copies inputs and parameters to the host, and the output back."""
        there, here = self.arrays, self._here
        taken = [*zip(there.inputs, here.inputs, strict=True)]
        taken += zip(there.parameters, here.parameters, strict=True)
        compute = self._kernel.forward(block=block, first=first, last=last)
        return sequence(_taking(taken), compute, _giving([(there.output, here.output)] if last else []))

    def backward_activation(self) -> Call:
        """Copies the gradient to the host, and that of the preactivation back."""
        pairs = [(self.arrays.own_grad, self._here.own_grad)]
        return sequence(_taking(pairs), self._kernel.backward_activation(), _giving(pairs))

    def backward_input(self, source: int, rows: Spans, *, accumulate: bool) -> Call:
        """Copies the gradient to the host, and that of the input back."""
        own, sums = (
            (self.arrays.own_grad, self._here.own_grad),
            (self.arrays.grad_input(source), self._here.grad_input(source)),
        )
        compute = self._kernel.backward_input(source, rows, accumulate=accumulate)
        return sequence(_taking([own, sums]), compute, _giving([sums]))

    @property
    def gradient_dtype(self) -> np.dtype[Any]:
        """The type in which the host's kernel writes them."""
        return self._kernel.gradient_dtype

    def backward_parameters(
        self, out: Sequence[Array], rows: tuple[int, int] | None = None, *, accumulate: bool = False
    ) -> Call:
        """Copies the gradient to the host, and those of the parameters back."""
        here = list(map(_copy, out))
        pairs = list(zip(out, here, strict=True))
        own = [(self.arrays.own_grad, self._here.own_grad)]
        compute = self._kernel.backward_parameters(here, rows, accumulate=accumulate)
        return sequence(_taking(own + (pairs if accumulate else [])), compute, _giving(pairs))


def _copy(array: Array) -> Array:
    return numbers_of(tensor_of(array).detach().to("cpu", copy=True).contiguous())


def _taking(pairs: Sequence[tuple[Array, Array]]) -> Call:
    def take() -> None:
        for there, here in pairs:
            on_host(here).copy_(tensor_of(there))

    return take


def _giving(pairs: Sequence[tuple[Array, Array]]) -> Call:
    def give() -> None:
        for there, here in pairs:
            tensor_of(there).copy_(on_host(here))

    return give
