"""The comparison of versions when a worker or a client meets a pool: what must match, and what may differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

SAME: Final = ("partita", "python", "cloudpickle", "numpy", "libzmq")
"""Must be the same to the letter: messages, pickled functions and arrays depend on them."""

SAME_RELEASE: Final = ("torch", "numba")
"""Must have the same first two numbers: kernels then compute the same. The rest may differ, and is reported,
because last bits may differ."""


def mismatch(own: Mapping[str, str], other: Mapping[str, str]) -> str:
    """Words what must match and does not: `numpy is 2.3.0 and must be 2.4.6`; "" if all matches."""
    found = [
        f"{name} is {other.get(name, 'missing')} and must be {own.get(name, 'missing')}"
        for name in (*SAME, *SAME_RELEASE)
        if not _matches(name, own.get(name, ""), other.get(name, ""))
    ]
    return ", ".join(found)


def difference(own: Mapping[str, str], other: Mapping[str, str]) -> str:
    """Words what may differ and does: `torch 2.13.0+cu130 beside 2.13.0+cpu`; "" if nothing does."""
    found = [
        f"{name} {other.get(name, '')} beside {own.get(name, '')}"
        for name in SAME_RELEASE
        if own.get(name) != other.get(name)
    ]
    return ", ".join(found)


def _matches(name: str, own: str, other: str) -> bool:
    if name in SAME:
        return own == other
    return own.partition("+")[0].split(".")[:2] == other.partition("+")[0].split(".")[:2]
