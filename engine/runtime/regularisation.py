"""Terms of regularisers: added to the gradients of the parameters that a machine owns, and to its losses.

Each number is added by its owner alone, once for each minibatch. A minibatch that is a part of what a
gradient is the mean over adds its share of a term: the shares of all parts add up to 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from partita.engine.kernels.kernel import Array
from partita.engine.parameters.vector import Vector
from partita.engine.runtime.buffers import Vectors
from partita.layers import Parameter
from partita.layers.regularisers import L1L2

AddTerm: TypeAlias = Callable[[int], None]
"""Adds a term to a gradient, for the minibatch of this number in the step."""


class Regularisation:
    """Makes the calls that add terms."""

    def __init__(
        self,
        vectors: Vectors,
        *,
        counts: Callable[[int], tuple[int, int]],
        add_loss: Callable[[str, float], None],
    ) -> None:
        """Takes what depends on the minibatch.

        Args:
            vectors: the machine's parameters.
            counts: for the number of a minibatch, its real examples, and those that its gradient is the mean
                over.
            add_loss: adds to the sum of losses over examples, for a parameter.
        """
        self._vectors, self._counts, self._add_loss = vectors, counts, add_loss

    def bind(self, parameter: Parameter, span: slice, gradient: Vector) -> AddTerm | None:
        """Prepares the term of a range of the machine's parameters; None where it has none.

        Args:
            parameter: the range is of.
            span: of the machine's vectors.
            gradient: `[n]`, of its size; the term is added to it.
        """
        regulariser, device, dtype = parameter.regulariser, self._vectors.device, self._vectors.dtype
        if regulariser is None or not parameter.trainable or span.start == span.stop:
            return None
        values, whole = self._vectors.parameters[span], gradient
        narrow = gradient.dtype != self._vectors.parameters.dtype
        if narrow:
            whole = device.zeros((span.stop - span.start,), dtype)

        def add(minibatch: int) -> None:
            real, mean_over = self._counts(minibatch)
            if not real:
                return
            if isinstance(regulariser, L1L2) and not regulariser.l1:  # passes that stay in caches
                term = regulariser.l2 * float(device.sum_of_squares(values))
                slope = device.given(values) * dtype.type(2 * regulariser.l2)
            else:
                term, slope = _term(regulariser, device.given(values))
            self._add_loss(parameter.name, real * term)
            if real != mean_over:
                slope = slope * dtype.type(real / mean_over)
            if narrow:
                device.copy(whole, gradient)
            device.add(whole, device.taken(slope))
            if narrow:
                device.copy(gradient, whole)

        return add


def _term(regulariser: Any, values: Array) -> tuple[float, Array]:
    """The sum over some numbers, and its gradient."""
    if isinstance(regulariser, L1L2):
        return regulariser.term(values)
    import torch

    leaf = torch.tensor(np.ascontiguousarray(values), requires_grad=True)
    term = regulariser(leaf)
    if getattr(term, "shape", None) != ():
        raise ValueError(
            f"the regulariser {regulariser!r} returned {term!r}; return a sum, a tensor of no axes"
        )
    (slope,) = torch.autograd.grad(term, leaf)
    return float(term.detach()), slope.numpy()
