"""A shard's end of the chain to its backup: the records that the backup lacks, in order, sent until it has
them.

The backup follows from its request for a copy on, and until the coordinator has taken it out: while it
follows, a reply that promises a record waits for it. This module must not know the numbers.
"""

from __future__ import annotations

from typing import Final

from partita.engine.protocol import messages as m
from partita.engine.protocol.durability.records import Record
from partita.engine.protocol.events import Send
from partita.engine.protocol.names import COORDINATOR
from partita.engine.protocol.retry import PendingRequest


class Chain:
    """Records on their way to the backup of a shard.

    Attributes:
        backup: its name.
        follower: the incarnation that follows; None: the shard is alone.
        kept: the backup has the records up to this number.
    """

    def __init__(self, backup: str, *, retry_s: float = 1.0) -> None:
        self.backup: Final = backup
        self.follower: int | None = None
        self.kept = 0
        self._retry_s: Final = retry_s
        self._present: int | None = None  # the incarnation in the directory
        self._under_way: Final[dict[int, PendingRequest[Record]]] = {}  # ascending
        self._progress_at = self._reported_at = float("-inf")

    def begin(self, incarnation: int, version: int) -> bool:
        """Lets a backup follow that lacks only the records above a version. Returns whether it follows."""
        if self._present != incarnation:
            return False
        if self.follower != incarnation:
            self.follower, self.kept = incarnation, version
            self._under_way.clear()
        return True

    def backup_is(self, incarnation: int | None) -> bool:
        """Notes the backup in a new directory. Returns whether the one before it is out of it."""
        before, self._present = self._present, incarnation
        if before is None or before == incarnation:
            return False
        self.follower = None
        self._under_way.clear()
        return True

    def send(self, record: Record, now: float) -> list[Send]:
        """Sends a record to the backup, if one follows."""
        if self.follower is None:
            return []
        if not self._under_way:
            self._progress_at = now
        self._under_way[record.number] = PendingRequest(record, now)
        return [self._message(record)]

    def take(self, number: int, now: float) -> int:
        """Notes the number up to which the backup has the records. Returns what it has now."""
        newest = next(reversed(self._under_way), self.kept)
        self.kept = max(self.kept, min(number, newest))
        while self._under_way and (first := next(iter(self._under_way))) <= self.kept:
            del self._under_way[first]
            self._progress_at = now
        return self.kept

    def tick(self, now: float) -> list[Send]:
        """Sends again what has not been confirmed for long; the others wait behind it."""
        first = next(iter(self._under_way.values()), None)
        if first is None or not first.retry(now, self._retry_s):
            return []
        return [self._message(pending.message) for pending in self._under_way.values()]

    def report(self, now: float) -> list[Send]:
        """Reports to the coordinator, about once a second, a backup that has confirmed nothing for long."""
        waited_s = now - self._progress_at
        if not self._under_way or min(waited_s, now - self._reported_at) < self._retry_s:
            return []
        self._reported_at = now
        return [Send(COORDINATOR, m.WaitReport(self.backup, "confirmations", waited_s))]

    def _message(self, record: Record) -> Send:
        request = record.request
        assert isinstance(request.message, m.Push), record
        message = m.RecordCopy(record.number, request.sender, request.incarnation, request.message)
        return Send(self.backup, message, forwarded=request.payload)

    def validate(self) -> None:
        """Checks the invariants. Raises AssertionError."""
        numbers = list(self._under_way)
        assert numbers == list(range(self.kept + 1, self.kept + 1 + len(numbers))), (self.kept, numbers)
        assert self.follower is not None or not numbers, numbers
