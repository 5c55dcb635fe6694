"""Linear layers over places: one matrix for all of them, multiplied by our own tiles where the places lie.

Only where the plan has tiles compute all three products of the layer; else its `forward` does. Cuts divide
the places: activations and their gradients have the same bits under every cut, and weight gradients agree
within rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

import numpy as np

from partita.engine.kernels.calls import bound, sequence, split_spans
from partita.engine.kernels.kernel import Array, Arrays, Call, Kernel, KernelContext, no_op
from partita.engine.kernels.products.places import (
    PANEL,
    STEPS,
    add_columns,
    add_products,
    multiply_places,
    places_beside,
    places_in,
    transpose_places,
)
from partita.engine.kernels.products.tiles import padded_stride
from partita.engine.kernels.thread_pool import ThreadPool
from partita.engine.kernels.tiles.scratch import Scratch
from partita.engine.kernels.tiles.transposition import transpose
from partita.engine.kernels.views import by_places, rows_of
from partita.engine.numerics import compiled
from partita.layers import Linear
from partita.layers.box import Spans
from partita.partitioner.cluster.products import Choice, ProductShape

_FOR_A_SUM: Final = 6.0
"""Operations of a product that take about as long as the sum of a number over a few examples."""


class _Choices(NamedTuple):
    """The library of each product of a layer, as the plan determines for one product of matrices."""

    forward: Choice
    backward_input: Choice
    backward_parameters: Choice

    @classmethod
    def of(cls, context: KernelContext) -> _Choices:
        """The choices, for the places and examples of the machine as columns."""
        units, features = context.grid.parameters[0].shape
        columns = context.n_rows * math.prod(context.grid.shape[1:-1]) * context.batch
        sizes = (units, features, columns), (features, units, columns), (units, columns, features)
        return cls(
            *(
                context.products.choose(ProductShape(*size, layout, context.precision, context.threads))
                for size, layout in zip(sizes, ("NN", "TN", "NT"), strict=True)
            )
        )


class LinearKernel(Kernel):
    """`output[place] = weight @ input[place] + bias` for the machine's rows, which are places."""

    layer = Linear
    precisions = ("float32", "float64")
    gradient_by_rows = False

    def __init__(self, context: KernelContext, arrays: Arrays, pool: ThreadPool) -> None:
        super().__init__(context, arrays, pool)
        self._choices, dtype = _Choices.of(context), context.dtype
        self._weight = arrays.parameters[0]
        self._bias = arrays.parameters[1] if len(arrays.parameters) > 1 else np.zeros(0, dtype)
        self._per_row = math.prod(context.grid.shape[1:-1])
        self._laid = Scratch(1, dtype)  # the weight, or its transpose, or the examples of a gradient
        self._columns, self._sums = Scratch(pool.threads, dtype), Scratch(pool.threads, dtype)
        self._own_input = by_places(rows_of(arrays.inputs[0], context.rows, context.windows[0]))

    @classmethod
    def computes(cls, context: KernelContext) -> bool:
        """Returns whether rows are places, and the plan lets tiles compute all products."""
        layer, shape = context.grid.layer, context.grid.shape
        assert isinstance(layer, Linear)
        return (
            super().computes(context)
            and layer.axis == -1
            and len(shape) > 1
            and layer.activation == "linear"
            and all(choice.by_tiles for choice in _Choices.of(context))
        )

    def forward(self, *, block: tuple[int, int] | None = None, first: bool = True, last: bool = True) -> Call:
        """Multiplies the weight by the columns of all places."""
        out = by_places(self.arrays.output)
        return self._multiply(self._weight, self._own_input, out, self._bias, self._choices.forward)

    def backward_input(self, source: int, rows: Spans, *, accumulate: bool) -> Call:
        """Multiplies the transposed weight; zero where places feed no row of the machine."""
        out, window, own = (
            self.arrays.grad_input(source),
            self.context.grad_windows[source],
            self.context.rows,
        )
        calls: list[Call] = []
        for start, stop in rows:
            low, high = max(start, own[0]), min(stop, own[1])
            if low >= high:
                low = high = stop
            beyond = [rows_of(out, span, window) for span in ((start, low), (high, stop))]
            calls += [] if accumulate else [partial(one.fill, 0) for one in beyond if one.size]
            if low < high:
                place, grad = (
                    rows_of(out, (low, high), window),
                    rows_of(self.arrays.own_grad, (low, high), own),
                )
                multiply = self._multiply(
                    self._weight.T,
                    by_places(grad),
                    by_places(place),
                    self._bias[:0],
                    self._choices.backward_input,
                    accumulate=accumulate,
                )
                calls.append(multiply)
        return sequence(*calls)

    def _multiply(
        self, matrix: Array, x: Array, out: Array, bias: Array, choice: Choice, *, accumulate: bool = False
    ) -> Call:
        """Prepares the product of a matrix and each place of `x`, by blocks of places."""
        k, n, examples = matrix.shape[1], len(x), x.shape[2]
        pool, laid = self.pool.at_most(choice.threads), _Laid(matrix)
        block = places_beside(k, examples, x.itemsize, n, pool.threads)
        stride = padded_stride(block * examples, x.itemsize)
        sizes = k * stride, PANEL * stride
        for scratch, size in zip((self._laid, self._columns, self._sums), (laid.size, *sizes), strict=True):
            scratch.reserve(size)

        def multiply(flat: Array, start: int, stop: int) -> None:
            with self._columns.take(sizes[0]) as columns, self._sums.take(sizes[1]) as sums:
                for first in range(start * block, stop * block, block):
                    span = first, min(first + block, n)
                    strides = laid.stride, stride
                    multiply_places(flat, x, out, bias, (columns, sums), strides, span, accumulate)

        def call() -> None:
            with self._laid.take(laid.size) as flat:
                laid.write(flat, pool)
                pool.split(0, -(-n // block), partial(multiply, flat))

        with self._laid.take(laid.size) as flat:
            laid.prepare(flat)
            multiply(flat, 0, 0)
            nothing, strides = (flat[:0], flat[:0]), (laid.stride, stride)
            bound(multiply_places, flat, x, out, bias, nothing, strides, (0, 0), accumulate)
        return call

    def backward_parameters(
        self, out: Sequence[Array], rows: tuple[int, int] | None = None, *, accumulate: bool = False
    ) -> Call:
        """Sums products of gradients and inputs over places and examples; threads divide the units."""
        assert rows is None, "all rows share the weights"
        x, grad = self._own_input, by_places(self.arrays.own_grad)
        pool, n, examples = self.pool.at_most(self._choices.backward_parameters.threads), len(x), x.shape[2]
        weight = out[0].reshape(self._weight.shape)
        block = min(places_in(STEPS, examples), n)
        stride = padded_stride(x.shape[1], x.itemsize)
        size = block * examples * stride
        self._laid.reserve(size)

        def add(turned: Array, first: int) -> None:
            end = min(first + block, n)
            continued = accumulate or first > 0

            def turn(start: int, stop: int) -> None:
                transpose_places(x, turned, stride, first, (start, stop))

            def multiply(start: int, stop: int) -> None:
                add_products(grad, turned, weight, stride, (first, end), (start, stop), continued)

            pool.split(first, end, turn)
            pool.split(0, len(weight), multiply)

        def call() -> None:
            with self._laid.take(size) as turned:
                for first in range(0, n, block):
                    add(turned, first)

        with self._laid.take(size) as turned:
            bound(transpose_places, x, turned, stride, 0, (0, 0))
            bound(add_products, grad, turned, weight, stride, (0, 0), (0, 0), accumulate)
        return sequence(call, self._add_bias(grad, out[1], pool, accumulate) if len(out) > 1 else no_op)

    @staticmethod
    def _add_bias(grad: Array, out: Array, pool: ThreadPool, accumulate: bool) -> Call:
        bias = out.reshape(-1)

        def work(start: int, stop: int) -> None:
            add_columns(grad, bias, (start, stop), accumulate)

        return split_spans(pool, ((0, len(bias)),), work, operations=_FOR_A_SUM * grad.size)


class _Laid:
    """A matrix whose rows are to lie a stride apart that suits the cache.

    Attributes:
        stride: between rows.
        size: of the memory.
    """

    def __init__(self, matrix: Array) -> None:
        self._matrix, self._transposes = matrix, matrix.strides[1] != matrix.itemsize
        self.stride = padded_stride(matrix.shape[1], matrix.itemsize)
        self.size = len(matrix) * self.stride

    def prepare(self, flat: Array) -> None:
        """Compiles what `write` needs."""
        bound(*self._call(flat, 0, 0))

    def write(self, flat: Array, pool: ThreadPool) -> None:
        """Lays the numbers out as the tiles read them, divided over threads."""

        def work(start: int, stop: int) -> None:
            loop, *arguments = self._call(flat, start, stop)
            loop(*arguments)

        pool.split(0, len(self._matrix), work, operations=float(self._matrix.size), kind="numbers")

    def _call(
        self, flat: Array, start: int, stop: int
    ) -> tuple[Callable[..., None], Array, Array, int, int, int]:
        matrix = self._matrix.T if self._transposes else self._matrix
        return (_turn if self._transposes else _copy), matrix, flat, self.stride, start, stop


@compiled
def _copy(matrix: Array, out: Array, stride: int, start: int, stop: int) -> None:
    """Writes rows `[start, stop)` of a matrix, a stride apart."""
    for row in range(start, stop):
        for column in range(matrix.shape[1]):
            out[row * stride + column] = matrix[row, column]


@compiled
def _turn(matrix: Array, out: Array, stride: int, start: int, stop: int) -> None:
    """Writes columns `[start, stop)` of a matrix as rows, a stride apart."""
    rows, columns = matrix.shape
    transpose(matrix.reshape(-1), start, columns, out, start * stride, stride, rows, stop - start)
