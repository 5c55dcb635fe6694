"""Estimates the offset between two hosts' clocks from round trips of messages.

A message arrives after it was sent. So each round trip bounds the difference of the clocks from both sides,
however unequal the two directions are, and all together bound it by the fastest trip of each direction. (The
Network Time Protocol takes the round with the shortest trip instead; its bound is never tighter.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RoundTrip:
    """The times of a message and its answer, in seconds.

    Args:
        sent_s: when it was sent, by our clock.
        received_s, replied_s: when it was received and answered, by the other clock.
        returned_s: when the answer was here, by our clock.
    """

    sent_s: float
    received_s: float
    replied_s: float
    returned_s: float

    @property
    def least_s(self) -> float:
        """Lower bound of the offset."""
        return self.sent_s - self.received_s

    @property
    def most_s(self) -> float:
        """Upper bound of the offset."""
        return self.returned_s - self.replied_s


@dataclass(frozen=True, slots=True)
class Offset:
    """The number of seconds to add to times of another clock.

    Args:
        offset_s: the middle of the possible range.
        uncertainty_s: half the width of the range, as long as both clocks run at one rate.
    """

    offset_s: float
    uncertainty_s: float


def offset_of(rounds: Sequence[RoundTrip]) -> Offset:
    """Returns the offset that all round trips allow.

    Where clocks ran so unevenly that none does, the shortest round trip decides alone.

    Raises:
        ValueError: there is no round trip.
    """
    if not rounds:
        raise ValueError("no message went there and back, so nothing is known of the other clock; send one")
    least = max(found.least_s for found in rounds)
    most = min(found.most_s for found in rounds)
    if least > most:
        shortest = min(rounds, key=lambda found: found.most_s - found.least_s)
        least, most = shortest.least_s, shortest.most_s
    return Offset((least + most) / 2, (most - least) / 2)
