"""Checks of arguments, for declarations and settings alike. Each returns the value in plain form.

Numbers of NumPy are accepted and turned into Python's, lists into tuples; `True`, 2.0 and "2" are no whole
numbers. `what` begins the error's sentence, verb included: "the size of a patch is".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from numbers import Integral, Real
from typing import Any, Final

from partita.layers.box import Extent, Margins, Shape

BOUND: Final = 1 << 53
"""Whole numbers stay below it: they fit any message, and a sum of two fits 64 bits."""


def is_whole(value: object) -> bool:
    """Returns whether the value is a whole number, of Python or NumPy."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def check_whole(value: object, what: str, *, least: int = 1) -> int:
    """Returns a whole number.

    Raises:
        ValueError: the value is no whole number, less than `least`, or 2**53 or more.
    """
    if not isinstance(value, Integral) or not is_whole(value) or int(value) < least:
        raise ValueError(f"{what} {value!r}; write a whole number of at least {least}")
    if int(value) >= BOUND:
        raise ValueError(f"{what} {int(value)}; write a whole number below 2**53")
    return int(value)


def check_number(
    value: object,
    what: str,
    *,
    zero: bool = False,
    below: float = math.inf,
    finite: bool = True,
    rule: str = "",
) -> float:
    """Returns a number above 0.

    Args:
        value: as the user gave it.
        what: see above.
        zero: whether 0 is allowed.
        below: exclusive upper bound.
        finite: whether infinity is refused.
        rule: end of the error's sentence, from its semicolon on; made from the bounds if not given.

    Raises:
        ValueError: the value is no number, NaN, or out of range.
    """
    if not isinstance(value, bool) and isinstance(value, Real):
        found = float(value)
        if (found > 0 or (zero and found == 0)) and (found < below or (found == math.inf and not finite)):
            return found
    if not rule and below < math.inf:
        rule = f", not a number {'of at least' if zero else 'above'} 0 and below {below:g}; change it"
    elif not rule:
        rule = f", not {'0 or a finite number above' if zero else 'a finite number above 0'}; change it"
    raise ValueError(f"{what} {value!r}{rule}")


def check_finite(value: object, what: str) -> float:
    """Returns a finite number of either sign. Raises ValueError where the value is none."""
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise ValueError(f"{what} {value!r}; write a finite number")
    return float(value)


def check_weights(value: object, what: str) -> tuple[float, ...] | None:
    """Returns numbers of 0 or above as a tuple, or None. Raises ValueError where the value is neither."""
    if value is None:
        return None
    given = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(given, Sequence) and given and not isinstance(given, str):
        rule = "; write 0 or a finite number above for each class"
        return tuple(check_number(one, f"{what} a row with", zero=True, rule=rule) for one in given)
    raise ValueError(f"{what} {value!r}; write a number for each class, such as (1.0, 2.5)")


def check_label(value: object, what: str) -> int | None:
    """Returns a whole number of either sign, or None. Raises ValueError where the value is neither."""
    if value is None:
        return None
    if not isinstance(value, Integral) or not is_whole(value) or abs(int(value)) >= BOUND:
        raise ValueError(f"{what} {value!r}; write a whole number, or None")
    return int(value)


def check_seconds(value: object, what: str) -> float:
    """Returns seconds. Raises ValueError where the value is no number above 0."""
    return check_number(value, what, finite=False, rule="; give seconds above 0")


def check_flag(value: object, what: str) -> bool:
    """Returns the flag. Raises ValueError where the value is neither True nor False."""
    if not isinstance(value, bool):
        raise ValueError(f"{what} {value!r}; write True or False")
    return value


def check_choice(value: object, what: str, choices: Sequence[str]) -> str:
    """Returns one of some words. Raises ValueError where the value is none of them."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{what} {value!r}; give one of {', '.join(map(repr, choices))}")
    return value


def check_fields(
    settings: object, check: Callable[..., object], *names: str, of: str | None = None, **limits: Any
) -> None:
    """Replaces fields of a frozen dataclass by what a check returns.

    Args:
        settings: the dataclass.
        check: one of the checks here.
        names: the fields.
        of: begins the sentence of an error, before the field's name; the name of the class if not given.
        limits: further arguments of the check.
    """
    begin = f"{type(settings).__name__}: " if of is None else of
    for name in names:
        object.__setattr__(settings, name, check(getattr(settings, name), f"{begin}{name} is", **limits))


def check_extents(value: object, what: str, *, least: int = 1, other: str = "") -> Extent:
    """The whole number, or the tuple of them; `other` says what else might have been written.

    Raises:
        ValueError: it is neither, or a tuple of nothing, or a number is less than `least`.
    """
    if not isinstance(value, list | tuple):
        given: tuple[object, ...] = (value,)
    else:
        given = tuple(value)
    try:
        extents = tuple(check_whole(extent, what, least=least) for extent in given)
    except ValueError:
        extents = ()
    if not extents:
        raise ValueError(
            f"{what} {value!r}; write {other}a whole number of at least {least}, or a tuple of them"
        )
    return extents if isinstance(value, list | tuple) else extents[0]


def check_padding(value: object, what: str) -> Extent | Margins:
    """Rows and columns to add: a whole number, one for each axis, or a pair (before, behind) for each axis.

    Raises:
        ValueError: it is none of these, or a number is less than 0.
    """
    axes = tuple(value) if isinstance(value, list | tuple) else ()
    if not any(isinstance(axis, list | tuple) for axis in axes):
        return check_extents(value, what, least=0, other="'valid', 'same', ")
    try:
        pairs = [check_extents(axis, what, least=0) for axis in axes]
    except ValueError:
        pairs = [()]
    both = tuple((pair, pair) if isinstance(pair, int) else pair for pair in pairs)
    if any(len(pair) != 2 for pair in both):
        raise ValueError(
            f"{what} {value!r}; write a pair of whole numbers of at least 0 for each axis, for example "
            "((top, bottom), (left, right))"
        )
    return tuple((pair[0], pair[1]) for pair in both)


def check_shape(value: object, what: str) -> Shape:
    """The shape; a single number stands for a row of so many.

    Raises:
        ValueError: as `check_extents`.
    """
    extents = check_extents(value, what)
    return extents if isinstance(extents, tuple) else (extents,)
