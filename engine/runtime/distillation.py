"""Distillation: a loss that also draws the scores towards what teachers have predicted for the same examples.

The gradient of a loss for its scores is "prediction less target" (`Loss.distils`). So the same loss with
a teacher's prediction as its target has as its gradient the difference of two gradients, at the scores and at
the teacher's, whatever the true target is. A teacher is a forward pass, after which the gradients at its
scores are added to an entry of the vector "predictions" of the machine that has these scores. Replicas may
exchange it, and no loss or kernel knows of it.

Sources: Hinton, Vinyals and Dean, "Distilling the knowledge in a neural network", 2015, section 2.1 (the
gradient); Anil and others, "Large scale distributed neural network training through online distillation",
2018, algorithm 1 (the term, with a weight).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import prod
from typing import Any

import numpy as np

from partita.engine.kernels.kernel import Array, Call
from partita.engine.runtime.devices import Device


class Distillation:
    """The teachers' gradients of one machine's scores, between their passes and the student's.

    Attributes:
        size: numbers of one minibatch that the machine has: of every loss and micro-batch, in their order.
    """

    def __init__(self, device: Device, dtype: np.dtype[Any]) -> None:
        """Nothing is distilled yet.

        Args:
            device: of the machine's arrays.
            dtype: in which gradients are kept.
        """
        self._device, self._dtype = device, dtype
        self._share = self._weight = 0.0
        self._entry = self.size = 0
        self._entries: Array = device.zeros((0, 0), dtype)

    @property
    def is_teaching(self) -> bool:
        """Returns whether the pass under way is a teacher's, which ends with the gradients of the losses."""
        return self._share != 0

    def keep_in(self, predictions: Array) -> None:
        """Keeps gradients in a vector, `[entries * size]`, as soon as all losses are known."""
        self._entries = predictions.reshape(-1, self.size) if self.size else self._entries

    def begin(self, entry: int = 0, *, teaches: float = 0.0, distil: float = 0.0) -> None:
        """Says what the next pass is.

        Args:
            entry: the minibatch of the vector.
            teaches: share of its predictions in those of all teachers; 0: it is the student's.
            distil: the weight of the teachers in the student's loss. It uses up what the entry holds.
        """
        self._entry, self._share, self._weight = entry, teaches, distil

    def around(self, call: Call, grads: Sequence[Array], *, accumulates: bool) -> Call:
        """Returns a call that adds the term of distillation to the gradients that another call writes.

        Args:
            call: writes the gradient of a loss for some scores of one micro-batch.
            grads: where it does, `[rows, ..., example]`.
            accumulates: whether it adds to what is there.
        """
        places = [*accumulate((prod(grad.shape) for grad in grads), initial=self.size)]
        self.size = places[-1]
        kept: list[_Kept] = []

        def call_and_distil() -> None:
            if not self._share and not self._weight:
                call()
                return
            if not kept:
                kept.extend(_Kept(self._device, grad, self._dtype) for grad in grads)
            for one in kept if accumulates else ():
                one.note_before()
            call()
            for one, (start, stop) in zip(kept, pairwise(places), strict=True):
                taught = self._entries[self._entry, start:stop].reshape(one.shape)
                if self._share:
                    one.teach(taught, self._share)
                else:
                    one.distil(taught, self._weight)

        return call_and_distil


class _Kept:
    """The gradient of some scores, and room for sums."""

    def __init__(self, device: Device, grad: Array, dtype: np.dtype[Any]) -> None:
        self._device, self._grad, self.shape = device, grad, grad.shape
        self._own, self._before = (device.zeros(grad.shape, dtype) for _ in range(2))

    def note_before(self) -> None:
        """Notes what the gradient of the loss is added to."""
        self._device.copy(self._before, self._grad)

    def teach(self, taught: Array, share: float) -> None:
        """Adds a share of the gradient to the teachers'."""
        self._take(share)
        taught += self._own

    def distil(self, taught: Array, weight: float) -> None:
        """Adds the difference from the teachers' gradient, with a weight."""
        self._take(weight)
        taught *= weight
        self._own -= taught
        self._device.copy(taught, self._grad)
        taught += self._own
        self._device.copy(self._grad, taught)

    def _take(self, factor: float) -> None:
        """Takes the gradient that was written last, times a factor."""
        self._device.copy(self._own, self._grad)
        self._own -= self._before
        self._own *= factor
