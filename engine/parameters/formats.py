"""Format versions of what is kept on a disk: an older one becomes today's by a chain of small upgrades.

A kind of file has a list of upgrades beside its own code; the n-th turns the fields of format n into those of
format n + 1. So the newest format is one more than there are upgrades, code elsewhere knows that one alone,
and whoever changes a format adds one function. A newer format than that is refused: what it means is not
known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import msgspec

Fields: TypeAlias = Mapping[str, Any]
Upgrade: TypeAlias = Callable[[Fields], Fields]
"""Returns the fields of a format as the next format has them."""

_T = TypeVar("_T")


class CheckpointError(ValueError):
    """A checkpoint or a journal is damaged, incomplete, or of another network."""


class NewerFormat(CheckpointError):
    """A file was written by a newer version; it is not damaged, so no older file is used in its place."""


class _Format(msgspec.Struct):
    format: int = 1


def newest(upgrades: Sequence[Upgrade]) -> int:
    """Returns the format that is written."""
    return len(upgrades) + 1


def decode_any(data: bytes | str, kind: type[_T], upgrades: Sequence[Upgrade]) -> _T:
    """Decodes JSON fields of any known format; those without the field `format` have format 1.

    Args:
        data: JSON object.
        kind: of the newest format.
        upgrades: from each format to the next.

    Raises:
        NewerFormat: the format is not known here.
        msgspec.MsgspecError, UnicodeDecodeError, RecursionError: the fields are not those of the format.
    """
    found = msgspec.json.decode(data, type=_Format).format
    check_format(found, newest(upgrades))
    if found == newest(upgrades):
        return msgspec.json.decode(data, type=kind)
    fields: Fields = msgspec.json.decode(data, type=dict[str, Any])
    for upgrade in upgrades[found - 1 :]:
        fields = upgrade(fields)
    return msgspec.convert({**fields, "format": newest(upgrades)}, type=kind)


def check_format(found: int, known: int) -> None:
    """Raises NewerFormat where a format is above `known`, msgspec.ValidationError where it is none."""
    if found > known:
        raise NewerFormat(
            f"has format {found}, and this version of Partita reads formats up to {known}; use the version "
            "that wrote it, or a newer one"
        )
    if found < 1:
        raise msgspec.ValidationError(f"format {found}, and formats count from 1")


def renamed(fields: Fields, names: Mapping[str, str]) -> dict[str, Any]:
    """Returns the fields with other names, in the same order.

    Raises:
        msgspec.ValidationError: a field has its later name already.
    """
    for name in names.values():
        if name in fields:
            raise msgspec.ValidationError(f"a field {name!r}, which its format does not know")
    return {names.get(name, name): value for name, value in fields.items()}
