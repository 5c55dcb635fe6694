"""The least work of each thread that shares a call of a kernel: a part of every plan, beside its libraries.

A second thread has to be woken, and fetches from the first one's cache what that has written: below some
work it costs more than it brings. How much work that is, a calibration measures
(`engine/profile/threads.py`); without one it follows from the processor. Kernels have no such numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

WorkKind: TypeAlias = Literal["product", "bfloat16", "gradient", "loop", "layer", "numbers"]
"""Kinds of work that threads share."""
WORK_KINDS: Final[tuple[WorkKind, ...]] = get_args(WorkKind)

NEVER: Final = 1e15
"""Work of a thread that no call has: one thread computes all."""

UPDATE_OPERATIONS: Final = 20.0
"""Operations of a product that take about as long as the update of a number, from the third-level cache."""


@dataclass(frozen=True, slots=True)
class ThreadShares:
    """The least work of each thread, by kind of work. Immutable.

    The defaults hold for any processor. They are so large that a second thread brings more than it costs even
    where caches exchange numbers slowly (AMD's Zen 4 and 5; `docs/performance.md` has the measurements).

    Args:
        product: operations of a product of matrices in float32 or float64.
        bfloat16: operations of a product in bfloat16.
        gradient: operations of a weight gradient, which a thread computes and applies in blocks of its own;
            the update of a number counts as `UPDATE_OPERATIONS`.
        loop: operations of a compiled loop: 2 million take 40 to 300 microseconds.
        layer: operations of a layer's `forward`, at the rate of products. It decides from how many sums the
            gradient of shared weights is added up, and so its bits: a calibration leaves it as it is.
        numbers: numbers of a pass over arrays with hardly any arithmetic, such as an update.
        source: processor and time of the calibration, in words; "" for a fixed rule.
    """

    product: float = 48e6
    bfloat16: float = 64e6
    gradient: float = 48e6
    loop: float = 2e6
    layer: float = 1e6
    numbers: float = float(1 << 21)
    source: str = ""

    def count(self, kind: WorkKind, amount: float, *, most: int) -> int:
        """Returns the number of threads, from 1 to `most`, that share so much work."""
        least: float = getattr(self, kind)
        return max(1, int(min(most, amount / least))) if least else most

    def __str__(self) -> str:
        how = f"calibration of {self.source}" if self.source else "fixed rule"
        shares = (f"{_NAMES[kind]} {_amount(kind, getattr(self, kind))}" for kind in WORK_KINDS)
        return f"{how} (each has at least: {', '.join(shares)})"


_NAMES: Final[dict[WorkKind, str]] = {
    "product": "product",
    "bfloat16": "in bfloat16",
    "gradient": "gradient",
    "loop": "loop",
    "layer": "layer",
    "numbers": "a pass",
}


def _amount(kind: WorkKind, least: float) -> str:
    """`24 MFLOP`, or `2.1 million numbers`."""
    if least >= NEVER:
        return "all"
    unit = "million numbers" if kind == "numbers" else "MFLOP"
    return f"{least / 1e6:.3g} {unit}"
