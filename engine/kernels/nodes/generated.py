"""Compiles the text that is generated around a user's functions; one process compiles, others load."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeAlias

from partita.engine.numerics.compiled import compiled

Names: TypeAlias = dict[str, Any]


class NotCompiled(Exception):
    """Generated text is not what Numba compiles."""


def ready(text: str, warm: Callable[[Names], None]) -> Names:
    """Compiles the functions of generated text, or loads them from the cache.

    Args:
        text: of a module; `compiled` decorates its functions.
        warm: calls them once with arguments of the types that they will have.

    Raises:
        NotCompiled: it cannot be compiled.
    """
    try:
        names = _kept(text)
        warm(names)
    except Exception as error:
        raise NotCompiled from error
    return names


@lru_cache(maxsize=256)
def _kept(text: str) -> Names:
    """Runs a text as part of this module, which every process can import; returns its names."""
    names: Names = {"__name__": __name__, "compiled": compiled}
    exec(compile(text, "<generated>", "exec"), names)
    return names
