"""Vectors of a driver: those that belong to a part's state, and those that a step alone uses.

All are as long as the part's parameters. Actions name them: `Combine`, `Apply`, `AllReduce` and `Dots`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

OF_PARTS: Final = ("parameters", "gradient", "norms", "sum", "dots", "predictions")
"""The vectors that every part has."""

_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,30}", flags=re.ASCII)


@dataclass(frozen=True)
class Kept:
    """A vector that is kept with the parameters: in checkpoints, and in what a replica behind receives.

    Args:
        optimizer: updates it (`Apply(optimizer, to=...)`), with a state of its own; None: only `Combine` and
            exchanges change it.
        start: its first numbers: those of the parameters, or zeros. So it starts, too, from a checkpoint
            without it.
    """

    optimizer: Any = None
    start: Literal["parameters", "zeros"] = "parameters"


def check_vectors(
    driver: str, kept: Mapping[str, Kept], scratch: Iterable[str], states: Iterable[str]
) -> None:
    """Checks the names of a driver's vectors.

    Args:
        driver: its name.
        kept: those that belong to the state.
        scratch: the others.
        states: names of the state of the optimizer of "parameters".

    Raises:
        ValueError: a name is taken, or cannot be the name of a vector in a file.
    """
    taken = {*OF_PARTS, *states}
    for name in (*kept, *scratch):
        if name in taken or not _NAME.fullmatch(name):
            raise ValueError(
                f"the driver {driver} has a vector {name!r}, which is no free name; take small letters, "
                f"digits and '_', and none of {', '.join(sorted(taken))}"
            )
        taken.add(name)
        if name in kept and kept[name].optimizer is not None:
            taken |= {state_name(name, own) for own in kept[name].optimizer.state_names}


def states_of(kept: Mapping[str, Kept]) -> set[str]:
    """Returns the names that kept vectors, and the states of their optimizers, have in a checkpoint."""
    of_optimizers = {
        state_name(name, own)
        for name, one in kept.items()
        if one.optimizer
        for own in one.optimizer.state_names
    }
    return {*kept, *of_optimizers}


def state_name(vector: str, own: str) -> str:
    """Returns the name of a vector of the optimizer's state of a kept vector: "anchor_velocity"."""
    return f"{vector}_{own}"
