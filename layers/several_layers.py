"""Common base of what places several layers with parameters by one call: a part of a transformer block."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from partita.layers.arguments import Arguments
from partita.layers.checks import check_flag
from partita.layers.initial import Initialiser, check_initialiser
from partita.layers.regularisers import Regulariser, check_regulariser
from partita.layers.states import Builder


@dataclass(frozen=True)
class SeveralLayers(Arguments):
    """Settings that all of the layers share.

    Attributes:
        rows: along which a cut divides the layers: one of `ways`.
        ways: what `rows` may be; the first is "positions".
        use_bias, initialiser, regulariser, trainable: of each layer, as in `Dense`.
        name: of the last layer, and the beginning of the others' names.
    """

    ways: ClassVar[tuple[str, str]]
    _meant: ClassVar[Mapping[str, str | tuple[str, ...]]] = {
        "bias": ("use_bias",),
        "kernel_initializer": ("initialiser",),
        "dropout": "call Dropout(...) on the result",
    }

    rows: str = field(default="positions", kw_only=True)
    use_bias: bool = field(default=True, kw_only=True)
    initialiser: Initialiser = field(default="glorot", kw_only=True)
    regulariser: Regulariser | None = field(default=None, kw_only=True)
    trainable: bool = field(default=True, kw_only=True)
    name: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        try:
            self.check()
            check_flag(self.use_bias, "use_bias is")
            check_flag(self.trainable, "trainable is")
            check_initialiser(self.initialiser)
            check_regulariser(self.regulariser)
            if self.rows not in self.ways:
                first, second = self.ways
                raise ValueError(f'rows are {self.rows!r}; write "{first}" or "{second}"')
        except ValueError as error:
            raise ValueError(f"{type(self).__name__}: {error}") from error

    @abstractmethod
    def check(self) -> None:
        """Raises ValueError for an invalid setting of its own."""

    @property
    def settings(self) -> dict[str, Any]:
        """Arguments of each layer."""
        return {
            "use_bias": self.use_bias,
            "initialiser": self.initialiser,
            "regulariser": self.regulariser,
            "trainable": self.trainable,
        }


def unused(network: Builder, name: str) -> str:
    """Returns the first free name of a network that begins so."""
    number = 0
    while True:
        found = f"{name}_{number}" if number else name
        try:
            network.shape(found)
        except ValueError:
            return found
        number += 1
