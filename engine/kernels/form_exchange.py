"""The summary that a cut layer's rows exchange with those of other machines, and its gradients in torch."""

from __future__ import annotations

import torch

from partita.engine.kernels.form_backward import derived, root
from partita.engine.kernels.kernel import Arrays
from partita.engine.kernels.tensors import as_tensor
from partita.layers.contract import Step
from partita.layers.layer import Layer


class Exchange:
    """A machine's summary among those of all machines.

    Attributes:
        own: the machine's, with its history.
        leaf: the summary of all rows, without a history: what the layer's forward pass is given.
    """

    own: torch.Tensor
    leaf: torch.Tensor

    def __init__(self, arrays: Arrays, piece: int, own: torch.Tensor) -> None:
        """Writes summary number `piece`, the machine's own."""
        assert arrays.summaries is not None, "no summary is exchanged"
        self._arrays, self._summaries, self._piece, self.own = arrays, as_tensor(arrays.summaries), piece, own
        self._summaries[piece].copy_(own.detach())

    def combine(self, layer: Layer, step: Step, *, learns: bool) -> torch.Tensor:
        """Returns the summary of all rows, when those of all machines are there."""
        self._all = self._summaries.clone().requires_grad_(learns)
        self._combined: torch.Tensor = layer.combine(step, self._all)
        self.leaf = self._combined.detach().requires_grad_(learns)
        return self.leaf

    @property
    def grads(self) -> torch.Tensor:
        """The gradients that the rows of each machine return for the summary of all."""
        assert self._arrays.grad_summaries is not None, "no gradient of the summary is exchanged"
        return as_tensor(self._arrays.grad_summaries)

    def write_gradient(self, piece: int, found: torch.Tensor | None) -> None:
        """Writes the gradient that rows return for the summary of all; None is zero."""
        place = self.grads[piece]
        if found is None:
            place.zero_()
        else:
            place.copy_(found)

    def root(self) -> torch.Tensor:
        """Returns where the backward pass of the machine's summary begins.

        Its gradient follows from the sum of those that all machines return, in their order.
        """
        grads = self.grads
        total = sum(grads[1:], start=grads[0]).to(self._combined.dtype)
        (found,) = derived([root(self._combined, total)], [self._all])
        assert found is not None, "the summary of all rows depends on each of them"
        return root(self.own, found[self._piece].to(self.own.dtype).contiguous())
