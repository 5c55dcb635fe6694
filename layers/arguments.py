"""Answers an argument that a class or a function does not have with the one that was meant, where possible.

Users come from Keras and PyTorch and write what they know. A class that is made by keywords derives from
`Arguments` and lists in `_meant` what other libraries call its arguments. A function of many arguments
`takes` them as one dataclass.
"""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import ClassVar, ParamSpec, Self, TypeVar

Given = ParamSpec("Given")
Settings = TypeVar("Settings")
Result = TypeVar("Result")


class Arguments:
    """Base of classes that users make by keywords.

    Raises:
        TypeError: an argument has an unknown name; the message says what to write instead.
    """

    _meant: ClassVar[Mapping[str, str | tuple[str, ...]]] = {}
    """For each name that users of other libraries write: the arguments it may stand for, of which the first
    that the class has is meant; or a sentence. Inherited from all bases."""

    _callable: ClassVar[str] = ""
    """The function that takes these arguments, as messages name it; "" for the class itself."""

    def __new__(cls, *args: object, **named: object) -> Self:
        """Checks the names before the class's own `__init__` receives them."""
        kind: type = cls
        known = _arguments_of(kind)
        if known is not None and len(args) > sum(known.values()):
            raise TypeError(_too_many(cls, args, known))
        if known is not None and not named.keys() <= known.keys():
            name = next(name for name in named if name not in known)
            raise TypeError(_answer(cls, name, tuple(known)))
        return super().__new__(cls)


def takes(
    arguments: Callable[Given, Settings],
) -> Callable[[Callable[[Settings], Result]], Callable[Given, Result]]:
    """Gives a function of one dataclass the call form, the signature and the documentation of its fields.

    Args:
        arguments: a dataclass that derives from `Arguments`, used by this one function.
    """

    def decorate(function: Callable[[Settings], Result]) -> Callable[Given, Result]:
        @functools.wraps(function)
        def call(*args: Given.args, **named: Given.kwargs) -> Result:
            return function(arguments(*args, **named))

        returns = inspect.signature(function).return_annotation
        call.__signature__ = inspect.signature(arguments).replace(return_annotation=returns)  # type: ignore[attr-defined]
        _, _, sections = (inspect.getdoc(arguments) or "").partition("\nArgs:")
        call.__doc__ = f"{inspect.getdoc(function)}\n\nArgs:{sections}"
        arguments._callable = call.__name__  # type: ignore[attr-defined]
        arguments.__init__.__qualname__ = call.__name__
        return call

    return decorate


@functools.lru_cache(maxsize=256)
def _arguments_of(cls: type) -> dict[str, bool] | None:
    """The names of a class's arguments, in order, and whether each may be given by place; None if it takes
    any.
    """
    init: object = vars(cls).get("__init__") or cls.__init__  # type: ignore[misc]
    _, *parameters = inspect.signature(init).parameters.values()  # type: ignore[arg-type]
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return {parameter.name: parameter.kind is not inspect.Parameter.KEYWORD_ONLY for parameter in parameters}


def _too_many(cls: type[Arguments], args: tuple[object, ...], known: Mapping[str, bool]) -> str:
    """Answers more arguments without a name than a class takes."""
    most, named = sum(known.values()), [name for name, by_place in known.items() if not by_place]
    what = f"{most or 'no'} argument{'s' * (most != 1)} without a name"
    rest = f"name it, as one of {', '.join(named)}, or leave it out" if named else "leave it out"
    return f"{cls._callable or cls.__name__} takes {what}, and {args[most]!r} is one more; {rest}"


def _answer(cls: type[Arguments], name: str, known: tuple[str, ...]) -> str:
    found = f"{cls._callable or cls.__name__} has no argument '{name}'"
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
