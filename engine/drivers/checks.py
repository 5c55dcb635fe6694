"""What the drivers' functions may be given: each mistake gets one sentence before anything starts."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import Final

from partita.layers.checks import check_whole
from partita.partitioner.plan import Plan

BOUND: Final = 1 << 53
"""Steps and counts stay below it, so that they fit any message and any sum of two fits 64 bits."""


def whole(value: object, what: str, *, least: int) -> int:
    """The whole number, of Python or NumPy, as Python's.

    Args:
        value: as the user gave it.
        what: begins the sentence: "epochs is".
        least: the least that it may be.

    Raises:
        ValueError: it is none, or out of range.
    """
    number = check_whole(value, what, least=least)
    if number >= BOUND:
        raise ValueError(f"{what} {number}; write a whole number below 2**53")
    return number


def check_seconds(value: object, what: str) -> None:
    """Raises ValueError where this is no number above zero."""
    if isinstance(value, bool) or not isinstance(value, Real) or not float(value) > 0:
        raise ValueError(f"{what} {value!r}; give seconds above 0")


def check_choice(value: object, what: str, choices: Sequence[str]) -> None:
    """Raises ValueError where this is none of the words."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{what} {value!r}; give one of {', '.join(map(repr, choices))}")


def check_plan(value: object) -> None:
    """Raises ValueError where this is no plan."""
    if not isinstance(value, Plan):
        raise ValueError(
            f"the plan is a {type(value).__name__}; partition the network first: "
            "partition(network, Cluster.local(machines=2), batch=32)"
        )
