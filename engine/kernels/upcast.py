"""Runs a layer in bfloat16 by a kernel that knows only float32, on float32 copies of its arrays.

Operands are upcast before each of its calls, results are rounded after. The copies cost memory and a pass
over it; a kernel for which that matters reads bfloat16 itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from partita.engine.kernels.calls import sequence
from partita.engine.kernels.kernel import Array, Arrays, Call, Kernel, KernelContext
from partita.engine.kernels.thread_pool import ThreadPool
from partita.engine.kernels.views import rows_of
from partita.engine.numerics import downcast_array, upcast_array
from partita.layers.box import Spans


class UpcastKernel(Kernel):
    """A kernel in float32, in a context of bfloat16.

    Args:
        kernel: the class of the kernel.
        context: in bfloat16.
        arrays: in storage type.
        pool: threads that kernels share.
    """

    def __init__(
        self,
        kernel: type[Kernel],
        context: KernelContext,
        arrays: Arrays,
        pool: ThreadPool,
    ) -> None:
        super().__init__(context, arrays, pool)
        self._wide = Arrays(
            inputs=tuple(map(_upcast_copy, arrays.inputs)),
            output=_upcast_copy(arrays.output),
            grad_output=None if arrays.grad_output is None else _upcast_copy(arrays.grad_output),
            grad_inputs=tuple(None if grad is None else _upcast_copy(grad) for grad in arrays.grad_inputs),
            parameters=tuple(map(_upcast_copy, arrays.parameters)),
        )
        self._kernel = kernel.make(replace(context, precision="float32"), self._wide, pool)
        self.gradient_by_rows = self._kernel.gradient_by_rows

    def forward(self, *, block: tuple[int, int] | None = None, first: bool = True, last: bool = True) -> Call:
        """Upcasts parameters and inputs, and rounds the output once the sum is complete."""
        stored, wide = self.arrays, self._wide
        pairs = [*zip(stored.parameters, wide.parameters, strict=True)] if first else []
        if block is None:
            pairs += zip(stored.inputs, wide.inputs, strict=True)
        else:
            window = self.context.windows[0]
            pairs.append((rows_of(stored.inputs[0], block, window), rows_of(wide.inputs[0], block, window)))
        return sequence(
            self._over(upcast_array, pairs),
            self._kernel.forward(block=block, first=first, last=last),
            self._over(downcast_array, [(wide.output, stored.output)] if last else []),
        )

    def backward_activation(self) -> Call:
        """Upcasts the gradient, and rounds it again."""
        stored, wide = self.arrays.own_grad, self._wide.own_grad
        upcast, downcast = (
            self._over(upcast_array, [(stored, wide)]),
            self._over(downcast_array, [(wide, stored)]),
        )
        return sequence(upcast, self._kernel.backward_activation(), downcast)

    def backward_input(self, source: int, rows: Spans, *, accumulate: bool) -> Call:
        """Upcasts the gradient, and what is accumulated to; rounds the rows asked for."""
        window = self.context.grad_windows[source]
        out, wide = self.arrays.grad_input(source), self._wide.grad_input(source)
        asked = [(rows_of(out, run, window), rows_of(wide, run, window)) for run in rows]
        own = (self.arrays.own_grad, self._wide.own_grad)
        return sequence(
            self._over(upcast_array, [own, *(asked if accumulate else [])]),
            self._kernel.backward_input(source, rows, accumulate=accumulate),
            self._over(downcast_array, [(after, before) for before, after in asked]),
        )

    def backward_parameters(
        self, out: Sequence[Array], rows: tuple[int, int] | None = None, *, accumulate: bool = False
    ) -> Call:
        """Upcasts the gradient; parameter gradients are float32 in any case."""
        own = (self.arrays.own_grad, self._wide.own_grad)
        find = self._kernel.backward_parameters(out, rows, accumulate=accumulate)
        return sequence(self._over(upcast_array, [own]), find)

    def _over(self, convert: Callable[[Array, Array], Array], pairs: Iterable[tuple[Array, Array]]) -> Call:
        """Converts the first array of each pair into the second, rows shared among the threads."""
        return sequence(*(self._conversion(convert, *pair) for pair in pairs if pair[0] is not pair[1]))

    def _conversion(self, convert: Callable[[Array, Array], Array], source: Array, out: Array) -> Call:
        def work(start: int, stop: int) -> None:
            convert(source[start:stop], out[start:stop])

        work(0, 0)
        return lambda: self.pool.split(0, len(source), work, operations=source.size)


def _upcast_copy(array: Array) -> Array:
    """Makes a float32 array of its shape; anything but bfloat16 stays itself."""
    return np.zeros(array.shape, np.float32) if array.dtype == np.uint16 else array
