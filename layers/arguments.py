"""Answers an argument that a class does not have: with the one that was meant, where that can be said.

Users come from Keras and PyTorch, and write what they know. A class that is made by keywords derives from
`Arguments`, and says in `_meant` what other libraries call its arguments.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping
from functools import lru_cache
from typing import ClassVar, Self


class Arguments:
    """Base of classes that users make by keywords.

    Raises:
        TypeError: there is no argument of a name that was given; with what to write instead.
    """

    _meant: ClassVar[Mapping[str, str | tuple[str, ...]]] = {}
    """What users of other libraries write: the names of arguments that it may stand for, the first that the
    class has is meant; or a sentence. Classes inherit what their bases say."""

    def __new__(cls, *args: object, **named: object) -> Self:
        """Looks at the names before the class's own `__init__` takes them."""
        kind: type = cls
        known = _arguments_of(kind)
        if known is not None and not named.keys() <= known.keys():
            name = next(name for name in named if name not in known)
            raise TypeError(_answer(cls, name, tuple(known)))
        return super().__new__(cls)


@lru_cache(maxsize=256)
def _arguments_of(cls: type) -> dict[str, None] | None:
    """The names that a class takes, in their order; None if it takes any."""
    init: object = vars(cls).get("__init__") or cls.__init__  # type: ignore[misc]
    _, *parameters = inspect.signature(init).parameters.values()  # type: ignore[arg-type]
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return dict.fromkeys(parameter.name for parameter in parameters)


def _answer(cls: type[Arguments], name: str, known: tuple[str, ...]) -> str:
    found = f"{cls.__name__} has no argument '{name}'"
    tables = (vars(one).get("_meant", {}) for one in cls.__mro__)
    meant: str | tuple[str, ...] = next((table[name] for table in tables if name in table), ())
    if isinstance(meant, str):
        return f"{found}; {meant}"
    close = difflib.get_close_matches(name.lower(), [one for one in known if one != "name"], n=1)
    for other in (*meant, *close):
        if other in known:
            return f"{found}; did you mean '{other}'?"
    takes = f"it takes {', '.join(known)}" if known else "it takes none"
    return f"{found}; {takes}"
