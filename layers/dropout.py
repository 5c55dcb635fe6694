"""Dropout: while it trains, a network that loses nodes at random."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from partita.layers.box import Shape
from partita.layers.checks import check_number, check_shape
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

    Nodes that share a place in `noise_shape` are dropped together: (1, 1, 16) drops whole channels of a
    picture, and (1, 1, 1) all nodes of an example, which beside an `Add` is stochastic depth (Huang and
    others, *Deep networks with stochastic depth*, 2016).

    Args:
        rate: share of nodes that are dropped, at least 0 and below 1.
        noise_shape: the layer's shape with 1 for the extents along which nodes are dropped together; each
            node by itself if not given.
        name: the layer's name in the network.
    """

    slowdown = 8.0
    _meant: ClassVar[Any] = {
        "p": ("rate",),
        "seed": "random numbers follow from the seed of the run; leave it out",
    }

    rate: float = 0.5
    noise_shape: int | Sequence[int] | None = field(default=None, kw_only=True)
    name: str | None = field(default=None, kw_only=True)

    def check(self) -> None:
        """Raises ValueError for an invalid setting."""
        rule = "; write a number of at least 0 and below 1"
        rate = check_number(self.rate, "the rate is", zero=True, rule=rule)
        if rate >= 1:
            raise ValueError(f"the rate is {rate}{rule}")
        self._settle(rate=rate)
        if self.noise_shape is not None:
            self._settle(noise_shape=check_shape(self.noise_shape, "the shape of the noise is"))

    @property
    def connectivity(self) -> Connectivity:
        """Each node to itself."""
        return OneToOne()

    def shape(self, sources: tuple[Shape, ...]) -> Shape:
        """The shape of the input.

        Raises:
            ValueError: `noise_shape` is of another shape.
        """
        noise = self._noise or sources[0]
        pairs = zip(noise, sources[0], strict=False)
        if len(noise) != len(sources[0]) or any(one not in (1, extent) for one, extent in pairs):
            raise ValueError(
                f"noise_shape is {self.noise_shape}, and the input {sources[0]}; give each axis its extent, "
                "or 1 where nodes are dropped together"
            )
        return sources[0]

    @property
    def _noise(self) -> Shape | None:
        assert self.noise_shape is None or isinstance(self.noise_shape, tuple), "settled by check"
        return self.noise_shape

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
        return step.keeps(self.rate, self._noise) * values.mul(1 / (1 - self.rate))

    @property
    def definition(self) -> NodeDefinition:
        """A node in `evaluate` and `predict`: in training a mask is drawn for all nodes of the layer."""

        def upward(incoming):  # type: ignore[no-untyped-def]
            return incoming[0]

        def downward(incoming, state, error):  # type: ignore[no-untyped-def]
            return (0 * incoming + error,)

        return NodeDefinition(upward, downward)
