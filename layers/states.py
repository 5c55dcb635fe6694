"""The result of calling a layer, on which the next layer is called."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from partita.layers.box import Shape


class Builder(Protocol):
    """A network while it is being declared, as far as a layer uses it."""

    name: str

    def add(self, layer: Any, sources: tuple[SymbolicTensor, ...]) -> SymbolicTensor:
        """Places a layer over its inputs."""

    def shape(self, name: str) -> Shape:
        """The grid of a layer."""


@dataclass(frozen=True)
class SymbolicTensor:
    """The output of a grid of nodes. Made by declaring an input or calling a layer."""

    network: Builder
    name: str

    @property
    def shape(self) -> Shape:
        """The layer's grid of nodes."""
        return self.network.shape(self.name)

    def __repr__(self) -> str:
        return f"<states of {self.name} {self.shape}>"
