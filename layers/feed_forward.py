"""The two dense layers at each position of a transformer block: several layers, placed by one call."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from partita.layers.activations import Activation, check_activation
from partita.layers.attention import SEQUENCE
from partita.layers.checks import check_whole
from partita.layers.linear import Linear
from partita.layers.several_layers import SeveralLayers, unused
from partita.layers.states import SymbolicTensor
from partita.layers.units import ToPositions, ToUnits


@dataclass(frozen=True)
class FeedForward(SeveralLayers):
    """Two dense layers at each position of a sequence (positions, features), with an activation between them.

    The result has the shape of the sequence. It places the layers NAME_hidden, NAME_activation and NAME. With
    `rows="positions"` they are `Linear` layers, whose rows are positions: machines share the weights, and
    exchange no activations. With `rows="units"` the rows of NAME_hidden are units with weights of their own;
    where NAME is cut by its inputs, machines exchange one sum forward and one gradient backward, and no
    weights.

    Source: Vaswani and others, *Attention is all you need*, 2017, section 3.3.

    Args:
        units: features of the hidden layer.
        activation: its activation, a name that `Activation` takes.
        rows: "positions" or "units": along which a cut divides the hidden layer.
        use_bias, initialiser, regulariser, trainable: of both layers, as in `Dense`.
        name: of the last layer, and the beginning of the others' names.
    """

    ways = ("positions", "units")
    _meant: ClassVar[Any] = {
        **SeveralLayers._meant,
        "hidden": ("units",),
        "dim_feedforward": ("units",),
        "intermediate_dim": ("units",),
        "act": ("activation",),
    }

    units: int
    activation: str = field(default="gelu", kw_only=True)

    def check(self) -> None:
        """Raises ValueError for an invalid setting of its own."""
        check_whole(self.units, "the number of units is")
        check_activation(self.activation, layer=True)

    def __call__(self, x: SymbolicTensor) -> SymbolicTensor:
        """Places the layers, and returns the output of the last one, of the shape of `x`.

        Later calls in the same network use the parameters of the first.

        Raises:
            ValueError: `x` is no sequence of another layer.
        """
        if not isinstance(x, SymbolicTensor):
            raise ValueError("FeedForward needs the states of another layer; write FeedForward(...)(x)")
        name = self.name or unused(x.network, "feed_forward")
        if len(x.shape) != 2:
            raise ValueError(f"FeedForward '{name}': the input has the shape {x.shape}; {SEQUENCE}")
        first, last = (ToUnits, ToPositions) if self.rows == "units" else (Linear, Linear)
        placed = x.network.placed(self)
        hidden = placed.setdefault("hidden", first(self.units, name=f"{name}_hidden", **self.settings))(x)
        active = Activation(self.activation, name=unused(x.network, f"{name}_activation"))(hidden)
        result: SymbolicTensor = placed.setdefault("last", last(x.shape[1], name=name, **self.settings))(
            active
        )
        return result
