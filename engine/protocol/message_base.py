"""The base of messages, and the types of their numbers."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import msgspec

MOST: Final = 1 << 53
"""The largest number in a message: sums of a few of them can still be sent."""

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=MOST)]
"""Every number of a message counts something; the decoder refuses any other."""

UnitRange: TypeAlias = tuple[Count, Count]
"""Units of work `[start, stop)`: a unit is the examples of a step."""


class MessageStruct(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True, array_like=True):
    """The base of every kind of message."""
