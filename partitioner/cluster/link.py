"""Links between machines: the time of a message by its size, as a straight line or as a measured table."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Final, TypeAlias

from partita.layers.checks import check_flag, check_number, check_whole

FASTEST: Final = 1e12
"""Bytes a second where a transfer takes no measurable time."""

Times: TypeAlias = tuple[float, float, float]
"""Seconds of a message: of its sender, of the link, of its receiver."""


def check_time(value: object, what: str) -> None:
    """Raises ValueError unless the value is a number of seconds."""
    check_number(value, what, zero=True, rule="; write a finite number of at least zero")


def _check_rate(value: object, what: str) -> None:
    check_number(value, what, zero=False, rule="; write a finite number of more than zero")


@dataclass(frozen=True, slots=True)
class MessageTimes:
    """Seconds of a message of one size.

    Args:
        n_bytes: its size.
        send_s: time of the sender's communication thread.
        link_s: time for which it occupies the link, beside the link's latency.
        receive_s: time of the receiver's communication thread.

    Raises:
        ValueError: the size is not a whole number of at least 1, or a time is below zero.
    """

    n_bytes: int
    send_s: float
    link_s: float
    receive_s: float

    def __post_init__(self) -> None:
        check_whole(self.n_bytes, "the size of a message in bytes is")
        for what in ("send_s", "link_s", "receive_s"):
            check_time(getattr(self, what), f"the {what} of a message is")

    @property
    def times(self) -> Times:
        """Seconds of its sender, of the link, and of its receiver."""
        return self.send_s, self.link_s, self.receive_s


@dataclass(frozen=True)
class Link:
    """A link from one machine to another. The defaults are guesses.

    The time of a message is a straight line over its bytes; or, with a table, it is interpolated between the
    sizes of the table, is that of the first size below it, and a straight line above the last. (The
    parametrised LogP model: Kielmann, Bal and Verstoep, "Fast measurement of LogP parameters for message
    passing platforms", 2000.)

    Args:
        latency_s: time of flight of a message.
        bytes_per_s: bandwidth in each direction.
        both_ways: full duplex; otherwise both directions share the bandwidth.
        send_s, receive_s: time that a message of any size occupies the communication thread of a machine.
        send_bytes_per_s, receive_bytes_per_s: rate at which the communication thread copies a message.
        table: times of messages by increasing size, which do not decrease; all other times and rates but
            latency and both_ways then follow from it.

    Raises:
        ValueError: a time is below zero, a rate is not above zero, or the table has one size or decreases.
    """

    latency_s: float = 100e-6
    bytes_per_s: float = 2e9
    both_ways: bool = True
    send_s: float = 30e-6
    receive_s: float = 30e-6
    send_bytes_per_s: float = 5e9
    receive_bytes_per_s: float = 5e9
    table: tuple[MessageTimes, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "table", tuple(self.table))
        if self.table:
            _check_table(self.table)
            self._follow_table()
        check_time(self.latency_s, "the latency of a link is")
        _check_rate(self.bytes_per_s, "the bytes/s of a link are")
        check_flag(self.both_ways, "both_ways of a link is")
        for what in ("send", "receive"):
            check_time(getattr(self, f"{what}_s"), f"the {what}_s of a link is")
            _check_rate(getattr(self, f"{what}_bytes_per_s"), f"the {what}_bytes_per_s of a link are")

    def times(self, n_bytes: int) -> Times:
        """Returns the seconds of a message of so many bytes; of a larger one they are not lower."""
        if not self.table:
            return (
                self.send_s + n_bytes / self.send_bytes_per_s,
                n_bytes / self.bytes_per_s,
                self.receive_s + n_bytes / self.receive_bytes_per_s,
            )
        sizes, begins, slopes = self._segments
        k = bisect_right(sizes, n_bytes)
        more, (send, link, receive), (per_send, per_link, per_receive) = (
            n_bytes - sizes[k - 1] if k else 0,
            begins[k],
            slopes[k],
        )
        return send + more * per_send, link + more * per_link, receive + more * per_receive

    def at_least(self, bytes_per_s: float) -> Link:
        """Returns the link with a bandwidth that is no lower than this one."""
        if not self.table:
            return replace(self, bytes_per_s=max(self.bytes_per_s, bytes_per_s))
        factor = min(self.bytes_per_s / bytes_per_s, 1.0)
        table = [replace(row, link_s=factor * row.link_s) for row in self.table]
        return replace(self, table=tuple(table))

    @cached_property
    def _segments(self) -> tuple[list[int], list[Times], list[Times]]:
        """Sizes of the table; and for each segment, from the one below all sizes to the one above all, the
        times at its begin and for each byte.
        """
        rows = self.table
        slopes = [_slopes(a, b) for a, b in pairwise(rows)]
        mean, last = _slopes(rows[0], rows[-1]), slopes[-1]
        above = max(mean[0], last[0]), max(mean[1], last[1]), max(mean[2], last[2])
        begins = [rows[0].times, *(row.times for row in rows)]
        return [row.n_bytes for row in rows], begins, [(0.0, 0.0, 0.0), *slopes, above]

    def _follow_table(self) -> None:
        first, slopes = self.table[0], _slopes(self.table[0], self.table[-1])
        rates = [min(1.0 / slope, FASTEST) if slope > 0 else FASTEST for slope in slopes]
        following = {
            "send_s": first.send_s,
            "receive_s": first.receive_s,
            "send_bytes_per_s": rates[0],
            "bytes_per_s": rates[1],
            "receive_bytes_per_s": rates[2],
        }
        for name, value in following.items():
            object.__setattr__(self, name, value)


@dataclass(frozen=True)
class Between:
    """The link between two hosts, by their names, or between machines of two kinds.

    Args:
        one, other: names of hosts or kinds.
        link: the link.
        one_way: whether it leads from `one` to `other` only. In its direction it takes precedence over a link
            of the same two names that leads both ways.

    Raises:
        ValueError: a name is missing, or the link is no `Link`.
    """

    one: str
    other: str
    link: Link
    one_way: bool = False

    def __post_init__(self) -> None:
        names: tuple[object, ...] = (self.one, self.other)
        if not all(isinstance(name, str) and name for name in names):
            raise ValueError(f"a link is between {self.one!r} and {self.other!r}; name two hosts or kinds")
        check_link(self.link)
        check_flag(self.one_way, f"one_way of the link between '{self.one}' and '{self.other}' is")


def check_link(link: object) -> None:
    """Raises ValueError unless the value is a `Link`."""
    if not isinstance(link, Link):
        raise ValueError(f"the link of a cluster is {link!r}; write for example Link(latency_s=1e-4)")


def _check_table(table: Sequence[object]) -> None:
    rows = [row for row in table if isinstance(row, MessageTimes)]
    if len(rows) < len(table) or len(rows) < 2:
        raise ValueError(
            f"the table of a link has {len(rows)} sizes of messages; give the times of at least two"
        )
    for one, other in pairwise(rows):
        if one.n_bytes >= other.n_bytes:
            raise ValueError(
                f"the table of a link has {other.n_bytes} bytes after {one.n_bytes}; order it by size"
            )
        if any(a > b for a, b in zip(astuple(one), astuple(other), strict=True)):
            raise ValueError(
                f"in the table of a link, {other.n_bytes} bytes take less time than {one.n_bytes}; "
                "times must not decrease"
            )


def _slopes(one: MessageTimes, other: MessageTimes) -> Times:
    """Seconds for each byte between two sizes."""
    more = other.n_bytes - one.n_bytes
    send, link, receive = ((b - a) / more for a, b in zip(one.times, other.times, strict=True))
    return send, link, receive


SHARED_MEMORY: Final = Link(latency_s=50e-6, bytes_per_s=4e9)
"""A guess of the link between processes of one host."""
