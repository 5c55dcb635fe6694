"""Quantities with their units, written and read back: "10 Gbit/s", "64 GiB", "50 us", "80 Gflop/s"."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Final

_BINARY: Final = {"KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40}
_DECIMAL: Final = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}

SECONDS: Final[Mapping[str, float]] = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
BYTES: Final[Mapping[str, float]] = {**{f"{k}B": n for k, n in _DECIMAL.items()}, **_BINARY}
BYTES_PER_S: Final[Mapping[str, float]] = {
    **{f"{unit}/s": n for unit, n in BYTES.items()},
    **{f"{k}bit/s": n / 8 for k, n in _DECIMAL.items()},
}
FLOPS_PER_S: Final[Mapping[str, float]] = {f"{k}flop/s": n for k, n in _DECIMAL.items()}

_WRITTEN: Final = re.compile(r"\s*([0-9.eE+-]+)\s*(\S+)\s*")


def readable_seconds(seconds: float) -> str:
    """Writes a number of seconds: `3.1 ms`."""
    for factor, unit in ((1.0, "s"), (1e3, "ms")):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


def parse_quantity(written: object, units: Mapping[str, float]) -> float:
    """Reads a quantity in the plain unit (seconds, bytes, bytes per second, operations per second).

    `units` are the plain unit's multiples by their names, recommended ones first.

    Raises:
        ValueError: the text is no quantity; the message says what would be, from "write" on.
    """
    found = _WRITTEN.fullmatch(written) if isinstance(written, str) else None
    if found is not None and found[2] in units:
        try:
            number = float(Decimal(found[1]) * Decimal(repr(units[found[2]])))
        except (InvalidOperation, OverflowError):
            number = math.nan
        if math.isfinite(number):
            return number
    raise ValueError(f"write a number and one of {', '.join(units)}")


def quantity(number: float, units: Mapping[str, float], *, digits: int | None = None) -> str:
    """Writes a quantity in the unit in which it is shortest.

    Without a number of significant digits, `parse_quantity` gives the very number back.
    """
    if digits is not None:
        fitting = [unit for unit, size in units.items() if 1.0 <= abs(number) / size < 1000.0]
        plain = [unit for unit, size in units.items() if size == 1.0]
        texts = (f"{number / units[unit]:.{digits}g} {unit}" for unit in fitting or plain)
        return min(texts, key=len)
    written = [f"{_plain(number, size)} {unit}" for unit, size in units.items()]
    return min((text for text in written if parse_quantity(text, units) == number), key=_length)


def _length(text: str) -> tuple[int, int]:
    """Ranks texts by their digits but for zeros at the end, then by their letters."""
    return len(text.split()[0].replace(".", "").strip("0")), len(text)


def _plain(number: float, size: float) -> str:
    """The number of units of this size, in plain decimals."""
    return f"{(Decimal(repr(float(number))) / Decimal(repr(size))).normalize():f}"
