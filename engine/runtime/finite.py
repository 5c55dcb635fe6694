"""Finds where numbers ceased to be finite: the first layer, in the order in which a step computes them.

Looked at only after something is known to be wrong, so it may take its time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np

from partita.engine.kernels.kernel import Array
from partita.engine.numerics import widen_array
from partita.engine.runtime.buffers import Buffers, Vectors
from partita.layers.graph import Graph


def what_is_not_finite(
    graph: Graph, buffers: Buffers, vectors: Vectors, *, gradients: Collection[str]
) -> str | None:
    """The first of a machine's arrays with a NaN or an infinity: "the states of 'hidden'"; None without any.

    Args:
        graph: the network.
        buffers: the machine's states.
        vectors: its parameters.
        gradients: layers whose gradient is known not to be finite.
    """
    return next(_found(graph, buffers, vectors, gradients), None)


def _found(graph: Graph, buffers: Buffers, vectors: Vectors, gradients: Collection[str]) -> Iterator[str]:
    for grid in graph.grids:
        for parameter, values in zip(
            grid.parameters, vectors.views(grid.name, vectors.parameters), strict=False
        ):
            if _bad(vectors.device.given(values)):
                yield f"the parameter '{parameter.name}'"
        windows = buffers.portions_of(grid.name)
        if any(_bad(buffers.device.given(window.array)) for window in windows):
            yield f"the input '{grid.name}'" if grid.is_given else f"the states of '{grid.name}'"
    for grid in reversed(graph.grids):
        if grid.name in gradients:
            yield f"the gradient of '{grid.name}'"


def _bad(values: Array) -> bool:
    return values.dtype != np.int64 and not bool(np.isfinite(widen_array(values)).all())
