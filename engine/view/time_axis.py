"""Round ticks for seconds, in a unit that can be read."""

from __future__ import annotations

import math
from dataclasses import dataclass

UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
TICKS = 9
"""About so many."""


@dataclass(frozen=True)
class TimeAxis:
    """From 0 to so many seconds.

    Args:
        stop_s: where it ends.
        step_s: from one tick to the next: 1, 2 or 5 times a power of ten.
        unit_s, unit: what ticks are written in.
    """

    stop_s: float
    step_s: float
    unit_s: float
    unit: str

    @property
    def ticks(self) -> tuple[float, ...]:
        """In seconds, from 0 on."""
        return tuple(n * self.step_s for n in range(math.floor(self.stop_s / self.step_s + 1e-9) + 1))

    @property
    def between(self) -> tuple[float, ...]:
        """Five finer ticks for each, without the ticks themselves."""
        fine = self.step_s / 5
        count = math.floor(self.stop_s / fine + 1e-9)
        return tuple(n * fine for n in range(1, count + 1) if n % 5)

    def text(self, seconds: float) -> str:
        """`2.5 ms`, with as many digits as ticks between ticks need."""
        digits = max(0, -math.floor(math.log10(self.step_s / self.unit_s) + 1e-9))
        value = seconds / self.unit_s
        if not math.isclose(round(value, digits), value, abs_tol=1e-9):
            digits += 1
        return f"{value:.{digits}f} {self.unit}"


def time_axis(stop_s: float) -> TimeAxis:
    """The axis of a timeline that lasts so long."""
    stop_s = max(stop_s, 1e-9)
    step_s = round_step(stop_s / TICKS)
    unit_s, unit = next((found for found in UNITS if stop_s >= found[0]), UNITS[-1])
    return TimeAxis(stop_s, step_s, unit_s, unit)


def round_step(rough: float) -> float:
    """The least of 1, 2 and 5 times a power of ten that is not less."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= rough * (1 - 1e-9))
