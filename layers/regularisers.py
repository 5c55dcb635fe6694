"""Regularisers: terms of the loss that depend on parameters alone, each a sum over their numbers.

A machine adds the terms of the numbers that it owns, so a regulariser must be a sum, no norm
of a whole array.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from partita.layers.checks import check_number


@dataclass(frozen=True)
class L1L2:
    """The sum of `l1 * |w| + l2 * w ** 2` over all numbers w, as in Keras.

    Args:
        l1: factor of the absolute values; 0 or above.
        l2: factor of the squares; 0 or above. `weight_decay` of an optimizer is twice this factor.

    Raises:
        ValueError: a factor below 0 or not finite.
    """

    l1: float = 0.0
    l2: float = 0.0

    def __post_init__(self) -> None:
        for name in ("l1", "l2"):
            rule = "; write 0 or a number above"
            found = check_number(getattr(self, name), f"the factor {name} is", zero=True, rule=rule)
            object.__setattr__(self, name, found)

    def term(self, values: np.ndarray[Any, Any]) -> tuple[float, np.ndarray[Any, Any]]:
        """Returns the sum over some numbers, in float64, and its gradient in their dtype."""
        wide = values.astype(np.float64)
        total = self.l1 * float(np.abs(wide).sum()) + self.l2 * float(np.square(wide).sum())
        return total, (self.l1 * np.sign(wide) + 2.0 * self.l2 * wide).astype(values.dtype)


def L1(factor: float) -> L1L2:  # noqa: N802 - named as in Keras
    """Returns the sum of `factor * |w|`. Raises ValueError for a factor below 0."""
    return L1L2(l1=factor)


def L2(factor: float) -> L1L2:  # noqa: N802 - named as in Keras
    """Returns the sum of `factor * w ** 2`. Raises ValueError for a factor below 0."""
    return L1L2(l2=factor)


Regulariser: TypeAlias = L1L2 | Callable[[Any], Any]
"""`L1(...)`, `L2(...)`, `L1L2(...)`, or a function that returns a sum over the numbers of a torch tensor."""


def check_regulariser(regulariser: object) -> None:
    """Raises ValueError where it is none, and not None."""
    if regulariser is None or isinstance(regulariser, L1L2) or callable(regulariser):
        return
    raise ValueError(
        f"the regulariser is {regulariser!r}; write L2(1e-4), L1(1e-4), or a function of a tensor that "
        "returns a sum over its numbers"
    )
