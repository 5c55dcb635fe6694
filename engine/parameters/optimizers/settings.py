"""What a setting of an optimizer or a schedule may be. It must not know which setting belongs to whom."""

from __future__ import annotations

import math
from numbers import Real

import numpy as np


def check_number(
    value: object, what: str, *, zero: bool = False, below: float = math.inf, other: str = ""
) -> float:
    """The number, of Python or NumPy, as Python's.

    Args:
        value: as the user gave it.
        what: begins the sentence of the error and ends in its verb: "SGD: rate is".
        zero: whether it may be 0.
        below: what it must stay below.
        other: what else might have been written, with a word before it: " or a schedule".

    Raises:
        ValueError: it is no finite number, or out of range.
    """
    if not isinstance(value, bool) and isinstance(value, Real):
        found = float(value)
        if math.isfinite(found) and 0 <= found < below and (found > 0 or zero):
            return found
    optimizer = "0 or a finite number above" if zero else "a finite number above 0"
    if below < math.inf:
        optimizer = f"a number {'of at least' if zero else 'above'} 0 and below {below:g}"
    raise ValueError(f"{what} {value!r}, not {optimizer}{other}; change it")


def is_nothing(value: float) -> bool:
    """Whether it is 0 in float32, the least that values are kept in."""
    return bool(np.float32(value) == 0)
