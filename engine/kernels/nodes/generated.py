"""Compiles the text that is generated around a user's functions; one process compiles, others load."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeAlias

from partita.engine.numerics.compiled import compiled, compiled_checked, compiled_for_this_process

Names: TypeAlias = dict[str, Any]


class NotCompiled(Exception):
    """Generated text, or a user's function in it, is not what Numba compiles."""


def ready(text: str, warm: Callable[[Names], None], **given: Any) -> Names:
    """Compiles the functions of generated text, or loads them from the cache.

    Args:
        text: of a module; `compiled` and `compiled_checked` decorate its functions.
        warm: calls them once with arguments of the types that they will have.
        given: names that the text uses and that only this process has; then nothing is cached.

    Raises:
        NotCompiled: it cannot be compiled.
    """
    try:
        names = _run(text, given) if given else _kept(text)
        warm(names)
    except Exception as error:
        raise NotCompiled from error
    return names


@lru_cache(maxsize=256)
def _kept(text: str) -> Names:
    return _run(text, {})


def _run(text: str, given: Names) -> Names:
    """Runs a text as part of this module, which every process can import; returns its names."""
    names: Names = {"__name__": __name__, **given}
    names["compiled"] = compiled_for_this_process if given else compiled
    names["compiled_checked"] = compiled_checked
    exec(compile(text, "<generated>", "exec"), names)
    return names
