"""How many replicas an evaluation is worth, and which: another one costs messages, and saves arithmetic.

A replica that has no assignment gets no point either. The bits are the same for any number of replicas.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

SHARE_S: Final = 5e-4
"""Seconds of an evaluation for which one replica is worth its messages: a point and a gradient of another
replica take a quarter of a millisecond of the processors, and wake three processes.
"""


def replicas_worth(work_s: float, present: int) -> int:
    """Returns the number of replicas among which an evaluation is divided, from 1 to `present` (at least 1).

    Args:
        work_s: seconds that one replica takes for all of it, its messages included; NaN: unknown.
        present: the number of replicas.
    """
    if not work_s < present * SHARE_S:
        return max(present, 1)
    return max(int(work_s / SHARE_S), 1)


def chosen(number: int, before: Iterable[int], present: Mapping[int, object]) -> tuple[int, ...]:
    """Returns so many of the present replicas: those chosen before first, in their order, then any others."""
    kept = [replica for replica in before if replica in present][:number]
    for replica in present:
        if len(kept) == number:
            break
        if replica not in kept:
            kept.append(replica)
    return tuple(kept)
