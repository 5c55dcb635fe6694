"""Members of an exchange, and the division of its numbers into pieces that are sent one by one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

CHUNK_BYTES: Final = 1 << 20
"""Largest piece of a span: one frame of the transport. Pieces are pipelined; a small span is one piece."""


@dataclass(frozen=True, slots=True)
class Member:
    """A host in an exchange. Members with the same `machine` share memory ("": with no other member)."""

    name: str
    incarnation: int = 0
    machine: str = ""


@dataclass(frozen=True)
class Group:
    """The members of one exchange of a view, in the order of their ranks, as one of them knows them.

    Args:
        members: by rank; the order is the same on every host.
        me: name of the member that this host is.
        view: number of the view; messages of other views have no effect.
        exchange: tells apart the exchanges of a view; the same on every host.
    """

    members: tuple[Member, ...]
    me: str
    view: int = 0
    exchange: int = 0

    def __post_init__(self) -> None:
        names = [member.name for member in self.members]
        assert self.me in names and len(set(names)) == len(names), (self.me, names)

    @cached_property
    def ranks(self) -> dict[str, int]:
        """The rank of each member, by name."""
        return {member.name: rank for rank, member in enumerate(self.members)}

    @property
    def rank(self) -> int:
        """The rank of this host."""
        return self.ranks[self.me]

    @cached_property
    def machines(self) -> tuple[str, ...]:
        """A label of the machine of each rank; members without one get a label of their own."""
        return tuple(
            f"machine {member.machine}" if member.machine else f"host {member.name}"
            for member in self.members
        )

    def rejection_reason(self, sender: str, incarnation: int) -> str | None:
        """Returns why a message of this sender is not accepted, in a few words; None when it may be."""
        rank = self.ranks.get(sender)
        if rank is None:
            return "it is no member of this exchange"
        expected = self.members[rank].incarnation
        if incarnation != expected:
            return f"incarnation {expected} of it is a member of this exchange, not {incarnation}"
        return None


@dataclass(frozen=True, slots=True)
class Numbers:
    """The numbers that an exchange sums: `length` of them, of `item_bytes` bytes each, in a span."""

    length: int
    item_bytes: int = 4
    chunk_bytes: int = CHUNK_BYTES

    def segment(self, index: int, segments: int) -> tuple[int, int]:
        """Returns `[start, stop)` of one of equal segments (equal where `segments` divides the length)."""
        return index * self.length // segments, (index + 1) * self.length // segments

    def pieces(self, index: int, segments: int) -> list[tuple[int, int]]:
        """Returns `[start, stop)` of the pieces of a segment: at most `chunk_bytes` each, none if empty."""
        start, stop = self.segment(index, segments)
        step = max(1, self.chunk_bytes // self.item_bytes)
        return [(first, min(first + step, stop)) for first in range(start, stop, step)]
