"""Activation functions of one number: the value, and the slope in terms of the activation or of the sum."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from partita.layers.box import Shape
from partita.layers.connectivity import Connectivity, OneToOne
from partita.layers.contract import Step, Tensor
from partita.layers.layer import Layer, NodeDefinition
from partita.layers.text import did_you_mean


def _linear(total: float) -> float:
    return total


def _linear_slope(state: float) -> float:
    return 1.0


def _relu(total: float) -> float:
    return total if total > 0.0 else 0.0 * total  # a NaN stays one


def _relu_slope(state: float) -> float:
    return 1.0 if state > 0.0 else 0.0


def _sigmoid(total: float) -> float:
    return 1.0 / (1.0 + math.exp(-total))


def _sigmoid_slope(state: float) -> float:
    return state * (1.0 - state)


def _tanh(total: float) -> float:
    return math.tanh(total)


def _tanh_slope(state: float) -> float:
    return 1.0 - state * state


ACTIVATIONS: dict[str, tuple[Callable[[float], float], Callable[[float], float]]] = {
    "linear": (_linear, _linear_slope),
    "relu": (_relu, _relu_slope),
    "sigmoid": (_sigmoid, _sigmoid_slope),
    "tanh": (_tanh, _tanh_slope),
}
"""By name: the value for a sum, and the slope for the activation that came of it."""


def _gelu(total: float) -> float:
    return 0.5 * total * (1.0 + math.erf(total / math.sqrt(2.0)))


def _gelu_slope(total: float) -> float:
    density = math.exp(-0.5 * total * total) / math.sqrt(2.0 * math.pi)
    return 0.5 * (1.0 + math.erf(total / math.sqrt(2.0))) + total * density


def _silu(total: float) -> float:
    return total / (1.0 + math.exp(-total))


def _silu_slope(total: float) -> float:
    share = 1.0 / (1.0 + math.exp(-total))
    return share * (1.0 + total * (1.0 - share))


def _leaky_relu(total: float) -> float:
    return total if total > 0.0 else 0.01 * total


def _leaky_relu_slope(total: float) -> float:
    return 1.0 if total > 0.0 else 0.01


def _elu(total: float) -> float:
    return total if total > 0.0 else math.expm1(total)


def _elu_slope(total: float) -> float:
    return 1.0 if total > 0.0 else math.exp(total)


def _softplus(total: float) -> float:
    return max(total, 0.0) + math.log1p(math.exp(-abs(total)))


def _softplus_slope(total: float) -> float:
    return 1.0 / (1.0 + math.exp(-total))


BY_INPUT: dict[str, tuple[Callable[[float], float], Callable[[float], float]]] = {
    "gelu": (_gelu, _gelu_slope),
    "silu": (_silu, _silu_slope),
    "leaky_relu": (_leaky_relu, _leaky_relu_slope),
    "elu": (_elu, _elu_slope),
    "softplus": (_softplus, _softplus_slope),
}
"""By name: the value for a sum, and the slope for the sum itself: the activation does not determine it, or
not well. They are layers of their own."""


def check_activation(name: object, *, layer: bool = False) -> None:
    """Raises ValueError where no activation has this name: of an `Activation` layer, or inside another."""
    if isinstance(name, str) and (name in ACTIVATIONS or (layer and name in BY_INPUT)):
        return
    if isinstance(name, str) and name in BY_INPUT:
        raise ValueError(
            f"{name} is a layer of its own; leave the activation out, and call "
            f'Activation("{name}") on the result'
        )
    every = [*ACTIVATIONS, *BY_INPUT]
    choices = ", ".join(every if layer else ACTIVATIONS)
    raise ValueError(f"there is no activation {name!r}; {did_you_mean(name, every)}choose one of {choices}")


@dataclass(frozen=True)
class Activation(Layer):
    """Applies an activation function to every node of its input.

    "linear", "relu", "sigmoid" and "tanh" may also be the `activation` of another layer. "gelu" (exact, by
    the error function), "silu" (`x * sigmoid(x)`), "leaky_relu" (0.01 of a negative number), "elu" (`exp(x) -
    1` of one) and "softplus" (`log(1 + exp(x))`) are layers of their own.

    Args:
        function: its name.
        name: the layer's name in the network.
    """

    _meant: ClassVar[Any] = {
        "activation": ("function",),
        "alpha": "the slope of leaky_relu is 0.01; for another, write a node: partita.layers.node",
        "negative_slope": "the slope of leaky_relu is 0.01; for another, write a node: partita.layers.node",
    }

    function: str
    name: str | None = field(default=None, kw_only=True)

    def check(self) -> None:
        """Raises ValueError for an invalid setting."""
        check_activation(self.function, layer=True)

    @property
    def connectivity(self) -> Connectivity:
        """Each node to itself."""
        return OneToOne()

    def shape(self, sources: tuple[Shape, ...]) -> Shape:
        """The shape of the input."""
        return OneToOne().shape(sources[0], None)

    def forward(self, step: Step, inputs: tuple[Tensor, ...], parameters: tuple[Tensor, ...]) -> Tensor:
        """PyTorch's function of the name."""
        return activated(step.torch, self.function, inputs[0])

    @property
    def definition(self) -> NodeDefinition:
        """The function, and its slope times the error."""
        by_input = self.function in BY_INPUT
        value, slope = (BY_INPUT if by_input else ACTIVATIONS)[self.function]

        def upward(incoming):  # type: ignore[no-untyped-def]
            return value(incoming[0])

        def downward(incoming, state, error):  # type: ignore[no-untyped-def]
            errors = incoming.copy()
            errors[0] = error * slope(state)
            return (errors,)

        def downward_by_input(incoming, state, error):  # type: ignore[no-untyped-def]
            errors = incoming.copy()
            errors[0] = error * slope(incoming[0])
            return (errors,)

        return NodeDefinition(upward, downward_by_input if by_input else downward)


def activated(torch: Any, function: str, sums: Tensor) -> Tensor:
    """The activations of sums, in torch."""
    if function == "linear":
        return sums
    if function in ("sigmoid", "tanh"):
        return getattr(torch, function)(sums)
    return getattr(torch.nn.functional, function)(sums)
