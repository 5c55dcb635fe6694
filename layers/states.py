"""The result of calling a layer, on which the next layer is called; and a weighted sum of losses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from partita.layers.box import Shape
from partita.layers.checks import check_finite


class Builder(Protocol):
    """A network while it is being declared, as far as a layer uses it."""

    name: str

    def add(self, layer: Any, sources: tuple[SymbolicTensor, ...]) -> SymbolicTensor:
        """Places a layer over its inputs."""

    def shape(self, name: str) -> Shape:
        """The grid of a layer."""

    def placed(self, several: object) -> dict[str, Any]:
        """The layers that earlier calls of an object placed."""


@dataclass(frozen=True)
class SymbolicTensor:
    """The output of a grid of nodes. Made by declaring an input or calling a layer."""

    network: Builder
    name: str

    @property
    def shape(self) -> Shape:
        """The layer's grid of nodes."""
        return self.network.shape(self.name)

    def __mul__(self, weight: float) -> LossSum:
        """Returns a loss with a weight, for `net.loss = loss + 0.3 * other`."""
        return LossSum(((self, check_finite(weight, f"the weight of loss '{self.name}' is")),))

    __rmul__ = __mul__

    def __add__(self, other: object) -> LossSum:
        """Returns a sum of losses. Sums of other layers are written `Add()(a, b)`."""
        return self * 1.0 + other

    def __radd__(self, other: object) -> LossSum:
        """Begins a `sum(...)` of losses."""
        return other + self * 1.0

    def __repr__(self) -> str:
        return f"<states of {self.name} {self.shape}>"


@dataclass(frozen=True)
class LossSum:
    """Losses and the weights with which they are added: what `net.loss` is assigned."""

    terms: tuple[tuple[SymbolicTensor, float], ...]

    def __mul__(self, weight: float) -> LossSum:
        """Multiplies all weights."""
        return LossSum(tuple((loss, (loss * weight).terms[0][1] * own) for loss, own in self.terms))

    __rmul__ = __mul__

    def __add__(self, other: object) -> LossSum:
        """Adds further losses."""
        if isinstance(other, SymbolicTensor):
            other = other * 1.0
        return LossSum((*self.terms, *other.terms)) if isinstance(other, LossSum) else NotImplemented

    def __radd__(self, other: object) -> LossSum:
        """Begins a `sum(...)` of losses."""
        return self if other == 0 else NotImplemented
