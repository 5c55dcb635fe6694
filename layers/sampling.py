"""Nodes that take one of two values at random: the stochastic units of graphical models."""

from __future__ import annotations

from dataclasses import dataclass, field

from partita.layers.box import Shape
from partita.layers.connectivity import Connectivity, OneToOne
from partita.layers.contract import Step, Tensor
from partita.layers.layer import Layer


@dataclass(frozen=True)
class Bernoulli(Layer):
    """Draws 1 with the probability `logistic(input)`, else 0, for each node of each example.

    The random numbers are functions of the run's seed, the layer, the epoch, the example's number in the data
    and the node, whatever the cut; in `evaluate` and `predict`, of the minibatch and the example's place in
    it. No gradient passes: neither this layer nor any that feeds it alone has a backward pass.

    Args:
        name: the layer's name in the network.
    """

    slowdown = 20.0
    stops_gradient = True

    name: str | None = field(default=None, kw_only=True)

    @property
    def connectivity(self) -> Connectivity:
        """Each node to itself."""
        return OneToOne()

    def shape(self, sources: tuple[Shape, ...]) -> Shape:
        """The shape of the input."""
        return sources[0]

    def forward(self, step: Step, inputs: tuple[Tensor, ...], parameters: tuple[Tensor, ...]) -> Tensor:
        """Compares 32 random bits with the probability, which is computed in float64."""
        bound = inputs[0].double().sigmoid().mul_(2.0**32).sub_(2.0**31)
        return (step.bits() < bound).to(inputs[0].dtype)

    @property
    def definition(self) -> None:
        """None: a node is a function of random bits, too."""
        return
