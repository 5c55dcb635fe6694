"""All vectors of a shard at one moment, for its file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from partita.engine.parameters.optimizers import all_finite
from partita.engine.parameters.vector import Vector


class NotFinite(ArithmeticError):
    """Numbers of a shard are NaN or infinite."""


@dataclass(frozen=True)
class ShardSnapshot:
    """Values and state (of an optimizer, or a method) of a shard: vectors of its size that do not change."""

    values: Vector
    state: Mapping[str, Vector] = field(default_factory=dict)

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
