"""The machine of a part under Sandblaster: it keeps early messages, and its client runs assignments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from partita.engine.protocol.batch_messages import Assignment, ContributionAck, Point
from partita.engine.protocol.events import Received, Refuse, Replaced, Tick
from partita.engine.protocol.host import PeersChanged
from partita.engine.protocol.link import Started
from partita.engine.protocol.messages import Credit, Heartbeat, Tensor
from partita.engine.protocol.part import LookForWaits, PartMachine
from partita.engine.protocol.program_effects import Deliver, StuckOn
from partita.engine.protocol.sandblaster_client import AssignmentDone, SandblasterClient


class SandblasterPart(PartMachine):
    """A part that begins when all parts of its replica and all shards of its parameters can be reached."""

    def __init__(self, client: SandblasterClient, *, others: Sequence[str]) -> None:
        """A part that knows nobody.

        Args:
            client: runs its assignments.
            others: the other parts of its replica.
        """
        needed = {*others, *client.shards}
        super().__init__(needed=needed, watched=needed)
        self.client: Final = client
        # Messages from before all peers were known; a repeat takes the place of the first.
        self._early: dict[tuple[str, type, int], Received] = {}

    def receive(self, event: Any, now: float) -> list[Any]:
        """Returns the effects of an event, in order."""
        match event:
            case AssignmentDone():
                return list(self.client.receive(event, now))
            case Received():
                return self._received(event, now)
            case PeersChanged():
                return list(self._peers_changed(event, now))
            case StuckOn(number=step, waits=missing):
                return list(self._report_waits(step, missing, now))
            case Tick() if self._peers is not None:
                effects: list[Any] = list(self.client.receive(event, now))
                shards = [(shard, "an answer") for shard in self.client.waits_for]
                return [*effects, *(self._report_waits(None, shards, now) if shards else [LookForWaits()])]
        return []

    def _received(self, event: Received, now: float) -> list[Any]:
        match event.message:
            case Tensor() | Credit():
                return [Deliver(event)]
            case Assignment() | Point() | ContributionAck() as message if self._peers is None:
                self._early[event.sender, type(message), getattr(message, "sequence", 0)] = event
            case Assignment() | Point() | ContributionAck():
                return list(self.client.receive(event, now))
            case Heartbeat():
                pass
            case message:
                kind = type(message).__name__
                return [Refuse(event.sender, f"a {kind}, which is not for a part under Sandblaster")]
        return []

    def _start(self, now: float) -> Iterator[Any]:
        yield from self.client.receive(Started(), now)
        for event in self._early.values():
            yield from self.client.receive(event, now)
        self._early.clear()

    def _replace(self, event: Replaced, now: float) -> Iterator[Any]:
        yield from self.client.receive(event, now)

    def validate(self) -> None:
        """Checks the invariants. Raises AssertionError."""
        self.client.validate()
        assert self._peers is None or not self._early, self._early
