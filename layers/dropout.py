"""Dropout: while it trains, a network that loses nodes at random."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from partita.layers.box import Shape
from partita.layers.checks import check_number
from partita.layers.connectivity import Connectivity, OneToOne
from partita.layers.contract import Gradients, Step, Tensor, Tensors
from partita.layers.layer import Layer, NodeDefinition


@dataclass(frozen=True)
class Dropout(Layer):
    """Drops each node of each example with a rate in training; in `evaluate` and `predict` it passes all on.

    A node that is kept is divided by `1 - rate`. Which nodes are dropped is a function of the run's seed, the
    layer, the epoch, the example's number in the data and the node: it is the same whatever the cut.

    Source: Srivastava and others, *Dropout: a simple way to prevent neural networks from overfitting*, JMLR,
    2014. The scale is applied in training, not afterwards, as in Keras and PyTorch.

    Args:
        rate: share of nodes that are dropped, at least 0 and below 1.
        name: the layer's name in the network.
    """

    slowdown = 8.0
    _meant: ClassVar[Any] = {
        "p": ("rate",),
        "seed": "random numbers follow from the seed of the run; leave it out",
        "noise_shape": "each node is dropped by itself; leave it out",
    }

    rate: float = 0.5
    name: str | None = field(default=None, kw_only=True)

    def check(self) -> None:
        """Raises ValueError for an invalid setting."""
        rule = "; write a number of at least 0 and below 1"
        rate = check_number(self.rate, "the rate is", zero=True, rule=rule)
        if rate >= 1:
            raise ValueError(f"the rate is {rate}{rule}")
        self._settle(rate=rate)

    @property
    def connectivity(self) -> Connectivity:
        """Each node to itself."""
        return OneToOne()

    def shape(self, sources: tuple[Shape, ...]) -> Shape:
        """The shape of the input."""
        return sources[0]

    def forward(self, step: Step, inputs: Tensors, parameters: Tensors) -> Tensor:
        """The mask times the input."""
        return self._masked(step, inputs[0])

    def backward(
        self, step: Step, inputs: Tensors, parameters: Tensors, output: Tensor, grad_output: Tensor
    ) -> Gradients:
        """The same mask, computed again, times the gradient."""
        return (self._masked(step, grad_output),), ()

    def _masked(self, step: Step, values: Tensor) -> Tensor:
        if not step.training or self.rate == 0:
            return values
        return step.keeps(self.rate) * values.mul(1 / (1 - self.rate))

    @property
    def definition(self) -> NodeDefinition:
        """A node in `evaluate` and `predict`: in training a mask is drawn for all nodes of the layer."""

        def upward(incoming):  # type: ignore[no-untyped-def]
            return incoming[0]

        def downward(incoming, state, error):  # type: ignore[no-untyped-def]
            return (0 * incoming + error,)

        return NodeDefinition(upward, downward)
