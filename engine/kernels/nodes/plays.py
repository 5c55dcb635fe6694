"""Runs compiled loops on the inputs of one node, for `comparison`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from partita.engine.kernels.nodes.comparison import Array, Inputs, Play, numbers, stored
from partita.engine.numerics import master

Loop = Callable[..., None]


def upward_play(states: Loop) -> Play:
    """Runs loops for `upward`."""

    def play(inputs: Inputs) -> Array:
        state = np.zeros((1, inputs.incoming.shape[1]), inputs.incoming.dtype)
        states(*inputs.table, *inputs.parameters, state, 0, 1)
        return numbers(state).T

    return play


def downward_play(errors: Loop, gradients: Loop | None) -> Play:
    """Runs loops for `downward`; gradients, which are sums over the examples, example by example."""

    def of_example(inputs: Inputs) -> Array:
        wide = master(inputs.signature.precision)
        found = [np.zeros(flat.shape, wide) for flat in inputs.parameters]
        if gradients is not None:
            state, error = inputs.last(-2), inputs.last(-1)
            gradients(*inputs.table, *inputs.parameters, state, error, *found, 0, 1, 0, 0)
        return np.concatenate([np.empty(0), *map(numbers, found)])

    def play(inputs: Inputs) -> Array:
        state, error = inputs.last(-2), inputs.last(-1)
        n_edges = len(inputs.incoming)
        out = np.zeros(inputs.incoming.shape, master(inputs.signature.precision))
        ends = np.zeros(1, np.int32), np.full(1, n_edges - 1, np.int32)
        errors(*inputs.table, *ends, *inputs.parameters, state, error, out, 0, n_edges)
        learned = [of_example(inputs.of([e])) for e in range(len(inputs.given))]
        return np.hstack([numbers(out).T, np.array(learned)])

    return play


def finish_play(finish: Loop, weight: int) -> Play:
    """Runs a weighted sum forward; `weight` is the number of its parameter."""

    def play(inputs: Inputs) -> Array:
        signature = inputs.signature
        sums = np.array([[given[0] @ given[1 + weight] for given in inputs.given]])
        wide = sums.astype(master(signature.precision))
        if signature.precision == "bfloat16":
            state = np.zeros(sums.shape, inputs.incoming.dtype)
            finish(len(inputs.incoming), *_of_nodes(inputs), wide, state, 0)
        else:
            state = wide
            finish(len(inputs.incoming), *_of_nodes(inputs), state, 0)
        return numbers(state).T

    return play


def backward_sum_play(backward_sum: Loop | None, weight: int) -> Play:
    """Runs a weighted sum backward: everything follows from the gradient of the sum."""

    def play(inputs: Inputs) -> Array:
        state, error = inputs.last(-2), inputs.last(-1)
        grad = error
        if backward_sum is not None:
            grad = stored(np.zeros(error.shape), inputs.signature)
            backward_sum(len(inputs.incoming), *_of_nodes(inputs), state, error, grad, 0)
        results = []
        for given, of_sum in zip(inputs.given, numbers(grad)[0], strict=True):
            learned = [
                of_sum * (given[0] if i == weight else np.ones(1)) for i in range(len(inputs.parameters))
            ]
            results.append(np.concatenate([of_sum * given[1 + weight], *learned]))
        return np.array(results)

    return play


def _of_nodes(inputs: Inputs) -> tuple[Array, ...]:
    kinds = (kind for _, kind in inputs.signature.parameters)
    return tuple(flat for flat, kind in zip(inputs.parameters, kinds, strict=True) if kind == "n")
