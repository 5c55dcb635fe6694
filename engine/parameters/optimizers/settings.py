"""Checks of the settings of optimizers and schedules, by their names and annotations."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from partita.layers.arguments import Arguments
from partita.layers.checks import check_fields, check_number, check_whole

Range = Mapping[str, Any]
"""Arguments of `check_number` for one setting."""

NON_NEGATIVE: Final[Range] = {"zero": True}
FRACTION: Final[Range] = {"zero": True, "below": 1.0}
_RATE: Final[Range] = {"rule": ", not a finite number above 0 or a schedule; change it"}


class Settings(Arguments):
    """Base of dataclasses whose numeric fields are checked and converted to Python's numbers.

    Raises:
        ValueError: a setting out of range.
    """

    _ranges: ClassVar[Mapping[str, Range]] = {
        "weight_decay": NON_NEGATIVE,
        "initial_accumulator": NON_NEGATIVE,
        "end": NON_NEGATIVE,
        "momentum": FRACTION,
        "alpha": FRACTION,
        "factor": {"below": 1.0},
    }
    """Ranges of fields; all others are above 0."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            name, kind, value = field.name, field.type, getattr(self, field.name)
            if kind == "int":
                check_fields(self, check_whole, name)
            elif kind == "float" or (kind == "float | None" and value is not None):
                check_fields(self, check_number, name, **self._ranges.get(name, {}))
            elif kind == "LearningRate" and not callable(getattr(value, "at", None)):  # no schedule
                check_fields(self, check_number, name, **_RATE)
