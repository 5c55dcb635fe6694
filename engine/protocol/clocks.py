"""How far apart two hosts' clocks are, from messages that went there and back.

A message arrives after it was sent. So each round bounds the difference of the clocks from both sides,
however unequal the two ways are, and all rounds together bound it by the best way there and the best way
back. (The Network Time Protocol takes the round with the shortest trip instead; its bound is never tighter.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RoundTrip:
    """A message there and back, in seconds.

    Args:
        sent_s: when it was sent, by our clock.
        received_s, replied_s: when it was heard and answered, by the other clock.
        returned_s: when the answer was here, by our clock.
    """

    sent_s: float
    received_s: float
    replied_s: float
    returned_s: float

    @property
    def least_s(self) -> float:
        """The other clock's times plus this are certainly not too late ..."""
        return self.sent_s - self.received_s

    @property
    def most_s(self) -> float:
        """... and plus this not too early."""
        return self.returned_s - self.replied_s


@dataclass(frozen=True, slots=True)
class Offset:
    """What is added to the times of another clock to have them on ours.

    Args:
        offset_s: the middle of what is possible.
        uncertainty_s: the truth is at most so far from it, as long as both clocks run at one rate.
    """

    offset_s: float
    uncertainty_s: float


def offset_of(rounds: Sequence[RoundTrip]) -> Offset:
    """The offset that some rounds allow.

    Where clocks ran so unevenly that no offset fits all rounds, the shortest round is believed alone.

    Raises:
        ValueError: there is no round.
    """
    if not rounds:
        raise ValueError("no message went there and back, so nothing is known of the other clock; send one")
    least = max(found.least_s for found in rounds)
    most = min(found.most_s for found in rounds)
    if least > most:
        shortest = min(rounds, key=lambda found: found.most_s - found.least_s)
        least, most = shortest.least_s, shortest.most_s
    return Offset((least + most) / 2, (most - least) / 2)
