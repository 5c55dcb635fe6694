"""An all-reduce algorithm: for every member, who sends its sums to whom, and who copies the result from whom.

The vector is divided into segments. Each segment is summed along a tree of members towards its root, and the
root's sum is copied along a tree to all others. So an algorithm is two trees for each segment, and one
machine (`exchange`) runs them all. The order of additions follows from the trees alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from partita.engine.protocol.exchange.group import Numbers

Phase: TypeAlias = Literal["all-reduce", "reduce-scatter", "all-gather"]
"""Sum and copy; or only the sums, each piece at its root; or only the copies from there."""

Weight: TypeAlias = Callable[[int], int]
"""The bytes, or the messages, that it takes to send one segment."""


@dataclass(frozen=True, slots=True)
class Route:
    """The neighbours of one member for one segment, by rank.

    Attributes:
        adds: members whose sums it adds to its own numbers, one after the other in this order.
        sums_to: the member that gets its sum; None at the root.
        copies_from: the member that sends it the result; None at the root.
        copies_to: members to which it sends the result.
    """

    adds: tuple[int, ...] = ()
    sums_to: int | None = None
    copies_from: int | None = None
    copies_to: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Link:
    """Cost of a message from one member to another: `latency_s + n_bytes * s_per_byte` seconds."""

    latency_s: float
    s_per_byte: float

    def seconds(self, n_bytes: float, messages: float = 1) -> float:
        """Returns the time of this many messages, one after the other, of this many bytes together."""
        return messages * self.latency_s + n_bytes * self.s_per_byte


class Algorithm(ABC):
    """One of the closed set `Ring`, `Tree`, `Hierarchical`, `Server`; or `Fastest`, which is one of them.

    `machines` holds a label by rank.
    """

    def among(self, machines: Sequence[str]) -> Algorithm:
        """Returns the algorithm that runs among these members."""
        return self

    @property
    def backup_workers(self) -> int:
        """The number of members without whose contributions a step is summed."""
        return 0

    @property
    def balanced(self) -> bool:
        """Returns whether each half alone brings a member as many pieces as it begins."""
        return False

    @abstractmethod
    def segments(self, machines: Sequence[str]) -> int:
        """Returns the number of segments of the vector."""

    @abstractmethod
    def route(self, rank: int, segment: int, machines: Sequence[str]) -> Route:
        """Returns the neighbours of a member for a segment."""

    @abstractmethod
    def sent(self, rank: int, machines: Sequence[str], weight: Weight) -> int:
        """Returns what a member sends in one exchange, by the algorithm's formula."""

    @abstractmethod
    def seconds(self, machines: Sequence[str], n_bytes: int, link: Link, local: Link | None = None) -> float:
        """Returns the time of one exchange by the alpha-beta model, without additions.

        Args:
            machines: a label by rank.
            n_bytes: size of the vector.
            link: between members of different machines.
            local: between members of one machine; None: as `link`.
        """


def bytes_sent(
    algorithm: Algorithm,
    rank: int,
    machines: Sequence[str],
    numbers: Numbers,
    *,
    phase: Phase = "all-reduce",
) -> int:
    """Returns the bytes of the payloads that a member sends in one exchange without repeats.

    With backup workers, the bytes of a member that is not dropped; one that is dropped may send fewer.
    """
    segments = algorithm.segments(machines)

    def weight(segment: int) -> int:
        start, stop = numbers.segment(segment, segments)
        return (stop - start) * numbers.item_bytes

    return _sent(algorithm, rank, machines, weight, phase)


def messages_sent(
    algorithm: Algorithm,
    rank: int,
    machines: Sequence[str],
    numbers: Numbers,
    *,
    phase: Phase = "all-reduce",
) -> int:
    """Returns the number of messages that a member sends in one exchange without repeats, as `bytes_sent`.

    With backup workers, the acknowledgement is not counted.
    """
    segments = algorithm.segments(machines)
    return _sent(algorithm, rank, machines, lambda segment: len(numbers.pieces(segment, segments)), phase)


def _sent(algorithm: Algorithm, rank: int, machines: Sequence[str], weight: Weight, phase: Phase) -> int:
    """Returns what a member sends: by the formula of the algorithm; of a half, along the trees."""
    if phase == "all-reduce":
        return algorithm.sent(rank, machines, weight)
    sent = 0
    for segment in range(algorithm.segments(machines)):
        route = algorithm.route(rank, segment, machines)
        times = len(route.copies_to) if phase == "all-gather" else int(route.sums_to is not None)
        sent += times * weight(segment)
    return sent
