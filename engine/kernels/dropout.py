"""Dropout in compiled loops: one pass for the bits, which the backward pass reads again, and one each way."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from partita.engine.kernels.calls import bound, sequence
from partita.engine.kernels.elementwise import OneToOneKernel
from partita.engine.kernels.kernel import Array, Arrays, Call, KernelContext
from partita.engine.kernels.thread_pool import ThreadPool
from partita.engine.kernels.views import flat, rows_of
from partita.engine.numerics import add_array, compiled, downcast, upcast
from partita.engine.numerics.philox import counted_bits, key_of
from partita.layers import Dropout


class DropoutKernel(OneToOneKernel):
    """Each node times 0 or `1 / (1 - rate)`, with the bits of the layer's `forward`."""

    layer = Dropout
    follows_steps = True

    def __init__(self, context: KernelContext, arrays: Arrays, pool: ThreadPool) -> None:
        super().__init__(context, arrays, pool)
        assert isinstance(context.grid.layer, Dropout)
        rate = context.grid.layer.rate if context.training else 0.0
        self._bits = np.zeros(arrays.output.shape if rate else (0,), np.uint32)
        self._least = np.int32(min(math.floor(rate * 2.0**32), 2**32 - 1) - 2**31)
        self._scale = np.float64(1 / (1 - rate))
        self._draw()

    @classmethod
    def computes(cls, context: KernelContext) -> bool:
        """Returns whether each node is dropped by itself."""
        assert isinstance(context.grid.layer, Dropout)
        return super().computes(context) and context.grid.layer.noise_shape is None

    def forward(self, *, block: tuple[int, int] | None = None, first: bool = True, last: bool = True) -> Call:
        """Draws the bits, and multiplies."""
        source = rows_of(self.arrays.inputs[0], self.context.rows, self.context.windows[0])
        if not self._bits.size:
            return partial(np.copyto, self.arrays.output, source)
        bits, output = flat(self._bits).view(np.int32), flat(self.arrays.output)
        return sequence(
            self._draw, bound(_multiply, bits, flat(source), output, self._least, self._scale, False)
        )

    def _draw(self) -> None:
        """Writes the bits of the machine's nodes."""
        if not self._bits.size:
            return
        examples, batch = self.micro_batch.examples, self.context.batch
        numbers, out = examples.numbers(self.micro_batch.first_example, batch), self._bits.reshape(-1, batch)
        key = key_of(examples.seed, self.context.grid.name)
        begin = 0
        for start, stop in self.context.node_ranges(self.context.rows):
            counted_bits(key, examples.visit, numbers, start, out[begin : begin + stop - start])
            begin += stop - start

    def write_gradient(self, source: int, own: slice, grad: Array, out: Array, accumulate: bool) -> None:
        """Multiplies by the same."""
        if not self._bits.size:
            (add_array if accumulate else np.copyto)(out, grad)
            return
        bits = flat(self._bits[own]).view(np.int32)
        _multiply(bits, flat(grad), flat(out), self._least, self._scale, accumulate)


@compiled
def _multiply(bits: Array, source: Array, out: Array, least: Any, scale: Any, accumulate: bool) -> None:
    """Writes or adds what is not dropped, times the scale."""
    for i in range(len(out)):
        value = upcast(source[i])
        found = value * (type(value)(scale) if bits[i] >= least else type(value)(0))
        out[i] = downcast(upcast(out[i]) + found if accumulate else found, out[i])
