"""Methods whose results an object keeps: `cached_property` for methods with arguments."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar, TypeVarTuple

S = TypeVar("S")
Ts = TypeVarTuple("Ts")
R = TypeVar("R")


def memoised(method: Callable[[S, *Ts], R]) -> Callable[[S, *Ts], R]:
    """Calls a method once for each of its arguments; results live as long as the object."""
    name = f"_{method.__name__}_of"

    @wraps(method)
    def remembered(self: S, *key: *Ts) -> R:
        results: dict[tuple[object, ...], R] = self.__dict__.setdefault(name, {})
        if key not in results:
            results[key] = method(self, *key)
        return results[key]

    return remembered
