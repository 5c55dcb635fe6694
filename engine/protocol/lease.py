"""The right to be a shard: what every kind of shard has in common.

A shard works only under a lease: the coordinator has given back, under this epoch, a clock reading of this
shard that is younger than `lease_s`. The coordinator declares a silent shard dead only later than `lease_s`
after it last heard of it; so two processes are never the same shard at the same time, however late a message
or a stopped process comes back. It must not know what a shard holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from partita.engine.protocol.events import Send
from partita.engine.protocol.messages import (
    CommandResult,
    ContributionAck,
    Heartbeat,
    Message,
    MissingUnits,
    Parameters,
    Point,
    PushAck,
    Saved,
)
from partita.engine.protocol.names import COORDINATOR

_ACKNOWLEDGES: Final = (CommandResult, MissingUnits, Parameters, Point, PushAck, Saved, ContributionAck)
"""What only the one that is the shard may say."""


@dataclass(frozen=True, slots=True)
class Fenced:
    """Effect, once: another process is this shard now. The host must end."""

    epoch: int


class LeasedShard:
    """A machine that works under a lease, asks for the next one in time, and stops when it is replaced."""

    def __init__(self, name: str, *, epoch: int, lease_s: float, heartbeat_s: float) -> None:
        """Without a lease, yet.

        Args:
            name: "shard K".
            epoch: the incarnation of this process.
            lease_s: how long an echoed clock reading lets it work.
            heartbeat_s: how often it asks for the next one.
        """
        self.name: Final = name
        self.epoch: Final = epoch
        self.fenced = False
        self._lease_s: Final = lease_s
        self._heartbeat_s: Final = heartbeat_s
        self._leased_until = float("-inf")
        self._next_heartbeat = float("-inf")

    def holds_lease(self, now: float) -> bool:
        """Whether it may apply and acknowledge at this time (seconds, its own monotonic clock)."""
        return not self.fenced and now < self._leased_until

    def may_send(self, message: Message, now: float) -> bool:
        """Whether a message may leave at this time (seconds, its own monotonic clock).

        Whoever carries out effects asks this before each `Send`: an operation takes a while, and the process
        may be stopped in it. What is not sent is said when it is asked for again.
        """
        return not isinstance(message, _ACKNOWLEDGES) or self.holds_lease(now)

    def validate(self) -> None:
        """The invariant I4 as far as one shard can see it. Raises AssertionError."""
        assert not (self.fenced and self.holds_lease(float("-inf")))

    def _tick(self, now: float) -> list[Send]:
        if self.fenced or now < self._next_heartbeat:
            return []
        self._next_heartbeat = now + self._heartbeat_s
        return [Send(COORDINATOR, Heartbeat(self.epoch, clock=now))]

    def _heartbeat(self, message: Heartbeat, now: float) -> list[Fenced]:
        if self.fenced or message.epoch < self.epoch:
            return []
        if message.epoch > self.epoch:
            self.fenced = True
            return [Fenced(message.epoch)]
        if message.clock is not None and message.clock <= now:
            self._leased_until = max(self._leased_until, message.clock + self._lease_s)
        return []
