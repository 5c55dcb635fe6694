"""All vectors of a shard at one moment, for its file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from typing_extensions import override

from partita.engine.parameters.optimizers import all_finite
from partita.engine.parameters.vector import Vector


class NotFinite(ArithmeticError):
    """Numbers of a shard are NaN or infinite."""


@dataclass(frozen=True)
class ShardSnapshot:
    """Values and state (of an optimizer, or a method) of a shard: vectors of its size that do not change."""

    values: Vector
    state: Mapping[str, Vector] = field(default_factory=dict)

    @property
    def vectors(self) -> dict[str, Vector]:
        """All of them, by the kinds of a file: "values", "state.sum"."""
        return {"values": self.values} | {f"state.{name}": vector for name, vector in self.state.items()}

    def check_finite(self) -> None:
        """Prevents diverged numbers from becoming the newest checkpoint.

        Raises:
            NotFinite: a value, or a number of the state, is NaN or infinite.
        """
        vectors = {"parameters": self.values}
        vectors.update((f"'{name}' of the optimizer", vector) for name, vector in self.state.items())
        for what, vector in vectors.items():
            if not all_finite(vector):
                raise NotFinite(f"its {what} are not finite; lower the learning rate, or look at the data")


class StateAlone(ShardSnapshot):
    """State of a file that has no values; another file has those."""

    def __init__(self, state: Mapping[str, Vector]) -> None:
        super().__init__(np.zeros(0), state)

    @property
    @override
    def vectors(self) -> dict[str, Vector]:
        return {f"state.{name}": vector for name, vector in self.state.items()}
