"""The two dense layers at each position of a transformer block: several layers, placed by one call."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from partita.layers.activations import Activation, check_activation
from partita.layers.arguments import Arguments
from partita.layers.attention import SEQUENCE
from partita.layers.checks import check_flag, check_whole
from partita.layers.initial import Initialiser, check_initialiser
from partita.layers.linear import Linear
from partita.layers.multi_head_attention import unused
from partita.layers.regularisers import Regulariser, check_regulariser
from partita.layers.states import SymbolicTensor
from partita.layers.units import ToPositions, ToUnits


@dataclass(frozen=True)
class FeedForward(Arguments):
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

    _meant: ClassVar[Any] = {
        "hidden": ("units",),
        "dim_feedforward": ("units",),
        "intermediate_dim": ("units",),
        "bias": ("use_bias",),
        "kernel_initializer": ("initialiser",),
        "act": ("activation",),
        "dropout": "call Dropout(...) on the result",
    }

    units: int
    activation: str = field(default="gelu", kw_only=True)
    rows: str = field(default="positions", kw_only=True)
    use_bias: bool = field(default=True, kw_only=True)
    initialiser: Initialiser = field(default="glorot", kw_only=True)
    regulariser: Regulariser | None = field(default=None, kw_only=True)
    trainable: bool = field(default=True, kw_only=True)
    name: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        try:
            check_whole(self.units, "the number of units is")
            check_activation(self.activation, layer=True)
            check_flag(self.use_bias, "use_bias is")
            check_flag(self.trainable, "trainable is")
            check_initialiser(self.initialiser)
            check_regulariser(self.regulariser)
            if self.rows not in ("positions", "units"):
                raise ValueError(f'rows are {self.rows!r}; write "positions" or "units"')
        except ValueError as error:
            raise ValueError(f"FeedForward: {error}") from error

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
        settings: Any = {
            "use_bias": self.use_bias,
            "initialiser": self.initialiser,
            "regulariser": self.regulariser,
            "trainable": self.trainable,
        }
        first, last = (ToUnits, ToPositions) if self.rows == "units" else (Linear, Linear)
        placed = x.network.placed(self)
        hidden = placed.setdefault("hidden", first(self.units, name=f"{name}_hidden", **settings))(x)
        active = Activation(self.activation, name=unused(x.network, f"{name}_activation"))(hidden)
        result: SymbolicTensor = placed.setdefault("last", last(x.shape[1], name=name, **settings))(active)
        return result
