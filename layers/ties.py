"""Parameters that several calls of layers use: a reference to one, and the parameter as another call has it.

A call of a layer that was called before in its network uses the parameters of the first call. So does a layer
whose argument of a parameter's name is a `ParameterOf`, `weight=embedding.weight`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from partita.layers.layer import Layer, Parameter


@dataclass(frozen=True)
class ParameterOf:
    """The parameter `name` of a layer, for other layers to use it: `Linear(1000, weight=embedding.weight)`.

    Args:
        layer: was called, in the same network, before the layer that uses its parameter.
        name: of the parameter in the layer, for example "weight".
    """

    layer: Layer
    name: str

    def __repr__(self) -> str:
        return f"<{self.name} of {self.layer.kind}{f' {self.layer.name!r}' if self.layer.name else ''}>"


def tied(asked: Parameter, held: Parameter) -> Parameter:
    """Returns the parameter `held` of another call, in the place of one that a call asked for.

    Its values, and whether and how they learn, are those of `held`; the call's nodes share it as they ask.

    Raises:
        ValueError: they differ in shape.
    """
    if asked.shape != held.shape:
        raise ValueError(
            f"its {asked.name} has the shape {asked.shape}, but {held.name} has {held.shape}; parameters are "
            "shared by calls that need equal shapes"
        )
    if asked.row_starts != held.row_starts:
        raise ValueError(
            f"its nodes have other numbers of edges than those of '{held.layer}', whose parameters it uses; "
            "call it on an input of the same shape"
        )
    return replace(held, shared=asked.shared, sparse=asked.sparse, by_inputs=asked.by_inputs)
