"""Layer normalisation over the features of each place: mean, variance and result in one visit of the place.

Rows are places; where the features are rows, or numbers are bfloat16, the layer's `forward` computes it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from partita.engine.kernels.elementwise import OneToOneKernel
from partita.engine.kernels.kernel import Array, Arrays, Call, KernelContext, no_op
from partita.engine.kernels.thread_pool import ThreadPool
from partita.engine.kernels.views import by_places, rows_of
from partita.engine.numerics import compiled, compiled_reassociating
from partita.layers import LayerNorm


class LayerNormKernel(OneToOneKernel):
    """`(input - mean) / deviation * weight + bias` for the machine's rows.

    The forward pass keeps mean and deviation of each place and example for the backward pass.
    """

    layer = LayerNorm
    precisions = ("float32", "float64")
    gradient_by_rows = False
    work = "loop", 3.0

    def __init__(self, context: KernelContext, arrays: Arrays, pool: ThreadPool) -> None:
        super().__init__(context, arrays, pool)
        layer, dtype = context.grid.layer, context.dtype
        assert isinstance(layer, LayerNorm)
        self._input = rows_of(arrays.inputs[0], context.rows, context.windows[0])
        features, self._epsilon = context.grid.shape[-1], dtype.type(layer.epsilon)
        self._weight: Array = arrays.parameters[0] if layer.scale else np.ones(features, dtype)
        self._bias: Array = arrays.parameters[1] if layer.scale else np.zeros(features, dtype)
        self._per_row = math.prod(context.grid.shape[1:-1])
        self._kept = np.zeros((context.n_rows * self._per_row, 2, context.batch), dtype)

    @classmethod
    def computes(cls, context: KernelContext) -> bool:
        """Returns whether rows are places."""
        return super().computes(context) and len(context.grid.shape) > 1

    def forward(self, *, block: tuple[int, int] | None = None, first: bool = True, last: bool = True) -> Call:
        """Normalises place after place."""
        x, output, kept = self._input, self.arrays.output, self._kept
        given = self._weight, self._bias, self._epsilon

        def work(start: int, stop: int) -> None:
            _normalise(
                by_places(x[start:stop]), by_places(output[start:stop]), self._of(kept, start, stop), *given
            )

        return self.over(((0, len(output)),), work)

    def write_gradient(self, source: int, own: slice, grad: Array, out: Array, accumulate: bool) -> None:
        """Adds up two sums over the features of a place, and then writes its gradients."""
        kept = self._of(self._kept, own.start, own.stop)
        x, places = by_places(self._input[own]), by_places(out)
        _write_gradient(x, by_places(grad), places, kept, self._weight, accumulate)

    def backward_parameters(
        self, out: Sequence[Array], rows: tuple[int, int] | None = None, *, accumulate: bool = False
    ) -> Call:
        """Sums over places and examples; threads divide the features."""
        assert rows is None, "all rows share the parameters"
        if not out:
            return no_op
        weight, bias = out
        arrays = by_places(self._input), by_places(self.arrays.own_grad), self._kept, weight, bias

        def work(start: int, stop: int) -> None:
            _add_up(*arrays, (start, stop), accumulate)

        return self.over(((0, len(weight)),), work)

    def _of(self, kept: Array, start: int, stop: int) -> Array:
        """Returns the part of an array of places that belongs to some rows."""
        return kept[start * self._per_row : stop * self._per_row]


@compiled
def _normalise(x: Array, out: Array, kept: Array, weight: Array, bias: Array, epsilon: float) -> None:
    """Normalises each place; `kept` receives the mean and the inverse of the deviation."""
    places, features, examples = x.shape
    for p in range(places):
        mean, inverse = kept[p, 0], kept[p, 1]
        mean[:] = 0
        inverse[:] = 0
        for f in range(features):
            for e in range(examples):
                mean[e] += x[p, f, e]
        for e in range(examples):
            mean[e] /= features
        for f in range(features):
            for e in range(examples):
                centred = x[p, f, e] - mean[e]
                inverse[e] += centred * centred
        for e in range(examples):
            inverse[e] = 1 / np.sqrt(inverse[e] / features + epsilon)
        for f in range(features):
            for e in range(examples):
                out[p, f, e] = (x[p, f, e] - mean[e]) * inverse[e] * weight[f] + bias[f]


@compiled
def _write_gradient(x: Array, grad: Array, out: Array, kept: Array, weight: Array, accumulate: bool) -> None:
    """Writes the gradient of the input, or adds it.

    It is `(g - mean(g) - normal * mean(g * normal)) / deviation` with `g = grad * weight`, where `normal` is
    the normalised input.
    """
    places, features, examples = x.shape
    means = np.zeros((2, examples), x.dtype)
    of_grad, of_product = means[0], means[1]
    for p in range(places):
        mean, inverse = kept[p, 0], kept[p, 1]
        means[:] = 0
        for f in range(features):
            for e in range(examples):
                g = grad[p, f, e] * weight[f]
                of_grad[e] += g
                of_product[e] += g * (x[p, f, e] - mean[e])
        for e in range(examples):
            of_grad[e] /= features
            of_product[e] *= inverse[e] * inverse[e] / features
        for f in range(features):
            for e in range(examples):
                rest = grad[p, f, e] * weight[f] - of_grad[e] - (x[p, f, e] - mean[e]) * of_product[e]
                if accumulate:
                    out[p, f, e] += rest * inverse[e]
                else:
                    out[p, f, e] = rest * inverse[e]


@compiled_reassociating
def _add_up(
    x: Array, grad: Array, kept: Array, weight: Array, bias: Array, span: tuple[int, int], accumulate: bool
) -> None:
    """Writes the gradients of the factors and terms of features `[start, stop)`, or adds them."""
    for f in range(*span):
        if not accumulate:
            weight[f] = bias[f] = 0
    for p in range(x.shape[0]):
        mean, inverse = kept[p, 0], kept[p, 1]
        for f in range(*span):
            of_weight = of_bias = x.dtype.type(0)
            for e in range(x.shape[2]):
                of_weight += grad[p, f, e] * (x[p, f, e] - mean[e]) * inverse[e]
                of_bias += grad[p, f, e]
            weight[f] += of_weight
            bias[f] += of_bias
