"""Activation functions of one number: the value, and the slope in terms of the activation."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from partita.layers.box import Shape
from partita.layers.connectivity import Connectivity, OneToOne
from partita.layers.layer import Layer, NodeDefinition


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


def check_activation(name: object) -> None:
    """Raises ValueError where there is no activation of this name."""
    if not isinstance(name, str) or name not in ACTIVATIONS:
        raise ValueError(f"there is no activation {name!r}; choose one of {', '.join(ACTIVATIONS)}")


@dataclass(frozen=True)
class Activation(Layer):
    """Applies an activation function ("relu", "sigmoid", "tanh" or "linear") to every node of its input."""

    function: str
    name: str | None = field(default=None, kw_only=True)

    def check(self) -> None:
        """Raises ValueError for an invalid setting."""
        check_activation(self.function)

    @property
    def connectivity(self) -> Connectivity:
        """Each node to itself."""
        return OneToOne()

    def shape(self, sources: tuple[Shape, ...]) -> Shape:
        """The shape of the input."""
        return OneToOne().shape(sources[0], None)

    @property
    def definition(self) -> NodeDefinition:
        """The function, and its slope times the error."""
        value, slope = ACTIVATIONS[self.function]

        def upward(incoming):  # type: ignore[no-untyped-def]
            return value(incoming[0])

        def downward(incoming, state, error):  # type: ignore[no-untyped-def]
            errors = incoming.copy()
            errors[0] = error * slope(state)
            return (errors,)

        return NodeDefinition(upward, downward)
