"""What a declaration may be given: whole numbers, shapes, flags. Each check returns the value in plain form.

Numbers of NumPy are accepted and turned into Python's, lists into tuples; `True`, 2.0 and "2" are no numbers.
`what` begins the sentence of the error and ends in its verb: "the size of a patch is".
"""

from __future__ import annotations

from numbers import Integral

from partita.layers.region import Extent, Margins, Shape


def is_whole(value: object) -> bool:
    """Whether it is a whole number, of Python or NumPy."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def check_whole(value: object, what: str, *, least: int = 1) -> int:
    """The whole number.

    Raises:
        ValueError: it is none, or less than `least`.
    """
    if isinstance(value, Integral) and is_whole(value) and int(value) >= least:
        return int(value)
    raise ValueError(f"{what} {value!r}; write a whole number of at least {least}")


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


def check_flag(value: object, what: str) -> None:
    """Raises ValueError where this is neither True nor False."""
    if not isinstance(value, bool):
        raise ValueError(f"{what} {value!r}; write True or False")
