"""Distillation: a loss that also draws the scores towards what teachers have predicted for the same examples.

The gradient of a loss for its scores is "prediction less target" (`Loss.distils`). So the same loss with
a teacher's prediction as its target has as its gradient the difference of two gradients, at the scores and at
the teacher's, whatever the true target is. A teacher is a forward pass by other parameters, after which the
gradients at its scores are kept, by the machine that has these scores: nothing is sent, and no loss or kernel
knows of it.

Sources: Hinton, Vinyals and Dean, "Distilling the knowledge in a neural network", 2015, section 2.1 (the
gradient); Anil and others, "Large scale distributed neural network training through online distillation",
2018, algorithm 1 (the term, with a weight).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from partita.engine.kernels.kernel import Array, Call
from partita.engine.runtime.devices import Device
from partita.engine.runtime.task import CannotGoOn


class Distillation:
    """The teachers' gradients of one machine's scores, between their passes and the student's."""

    def __init__(self, device: Device, dtype: np.dtype[Any]) -> None:
        """Nothing is distilled yet.

        Args:
            device: of the machine's arrays.
            dtype: in which gradients are kept.
        """
        self._device, self._dtype = device, dtype
        self._share = self._weight = 0.0
        self._number, self._is_first = -1, True

    @property
    def is_teaching(self) -> bool:
        """Returns whether the pass under way is a teacher's, which ends with the gradients of the losses."""
        return self._share != 0

    def begin(self, number: int, *, teaches: float = 0.0, distil: float = 0.0) -> None:
        """Says what the next pass is.

        Args:
            number: of the pass; those of a step follow one another.
            teaches: share of its predictions in those of all teachers; 0: it is the student's.
            distil: the weight of the teachers in the student's loss.

        Raises:
            CannotGoOn: there were no teachers in this step.
        """
        self._is_first = not (self.is_teaching and number == self._number + 1)
        if distil and self._is_first:
            raise CannotGoOn(
                f"the driver's program computes a step with distil={distil}, and no teacher has predicted "
                "its examples; let Compute(step, teaches=1.0) come before, by a teacher's parameters"
            )
        self._number, self._share, self._weight = number, teaches, distil

    def around(self, call: Call, grads: Sequence[Array], *, accumulates: bool) -> Call:
        """Returns a call that adds the term of distillation to the gradients that another call writes.

        Args:
            call: writes the gradient of a loss for some scores of one micro-batch.
            grads: where it does, `[rows, ..., example]`.
            accumulates: whether it adds to what is there.
        """
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
            for one in kept:
                if self._share:
                    one.teach(self._share, is_first=self._is_first)
                else:
                    one.distil(self._weight)

        return call_and_distil


class _Kept:
    """The teachers' gradient of some scores, and room for sums."""

    def __init__(self, device: Device, grad: Array, dtype: np.dtype[Any]) -> None:
        self._device, self._grad = device, grad
        self._taught, self._own, self._before = (device.zeros(grad.shape, dtype) for _ in range(3))

    def note_before(self) -> None:
        """Notes what the gradient of the loss is added to."""
        self._device.copy(self._before, self._grad)

    def teach(self, share: float, *, is_first: bool) -> None:
        """Adds a share of the gradient to the teachers'."""
        if is_first:
            self._taught[...] = 0
        self._take(share)
        self._taught += self._own

    def distil(self, weight: float) -> None:
        """Adds the difference from the teachers' gradient, with a weight."""
        self._take(weight)
        self._taught *= weight
        self._own -= self._taught
        self._device.copy(self._taught, self._grad)
        self._taught += self._own
        self._device.copy(self._grad, self._taught)

    def _take(self, factor: float) -> None:
        """Takes the gradient that was written last, times a factor."""
        self._device.copy(self._own, self._grad)
        self._own -= self._before
        self._own *= factor
