"""A shard's end of the chain to its backup: the records that the backup lacks, in order, sent until it has
them.

The backup follows from its request for a copy on, and until the coordinator has taken it out: while it
follows, a reply that promises a record waits for it. This module must not know the numbers.

On one machine the backup has a record as soon as it is sent: the record lies in memory that both share, and
in a queue of the system, so that it arrives even if the shard dies. `Delivered` reports that. Then nothing
waits, and nobody is asked; but a backup that has confirmed nothing for long is trusted with nothing more.
"""

from __future__ import annotations

from typing import Final

from partita.engine.protocol import messages as m
from partita.engine.protocol.batch_messages import Command, EvaluationSum
from partita.engine.protocol.durability.records import Record
from partita.engine.protocol.events import Send
from partita.engine.protocol.names import COORDINATOR
from partita.engine.protocol.retry import PendingRequest

TRUSTED_S: Final = 2.0
"""Seconds for which a backup that confirms nothing is believed to have what was delivered to it."""


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
        self._newest = 0  # the last record that was sent
        self._delivered = -1  # the last one that was delivered, and all before it
        self._confirmed = 0
        self._behind_since: float | None = None  # when the backup had confirmed all, or more than before

    def begin(self, incarnation: int, version: int) -> bool:
        """Lets a backup follow that lacks only the records above a version. Returns whether it follows."""
        if self._present != incarnation:
            return False
        if self.follower != incarnation:
            self.follower, self.kept = incarnation, version
            self._newest = self._confirmed = version
            self._delivered, self._behind_since = -1, None
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
        self._newest = record.number
        if self._behind_since is None:
            self._behind_since = now
        return [self._message(record, asks=self._delivered < record.number - 1)]

    def deliver(self, number: int, now: float) -> int:
        """Notes a record that the backup is sure to get. Returns the number up to which it has all."""
        waits = self._behind_since is not None and now - self._behind_since > TRUSTED_S
        if self.follower is None or waits or number != self.kept + 1:
            return self.kept
        self._delivered = number
        return self._keep(number, now)

    def take(self, number: int, now: float) -> int:
        """Notes the number up to which the backup has the records. Returns what it has now."""
        number = min(number, self._newest)
        if number > self._confirmed:
            self._confirmed, self._behind_since = number, None if number == self._newest else now
        return self._keep(number, now)

    def _keep(self, number: int, now: float) -> int:
        self.kept = max(self.kept, number)
        while self._under_way and (first := next(iter(self._under_way))) <= self.kept:
            del self._under_way[first]
            self._progress_at = now
        return self.kept

    def tick(self, now: float) -> list[Send]:
        """Sends again what has not been confirmed for long; the others wait behind it."""
        first = next(iter(self._under_way.values()), None)
        if first is None or not first.retry(now, self._retry_s):
            return []
        return [self._message(pending.message, asks=True) for pending in self._under_way.values()]

    def report(self, now: float) -> list[Send]:
        """Reports to the coordinator, about once a second, a backup that has confirmed nothing for long."""
        waited_s = now - self._progress_at
        if not self._under_way or min(waited_s, now - self._reported_at) < self._retry_s:
            return []
        self._reported_at = now
        return [Send(COORDINATOR, m.WaitReport(self.backup, "confirmations", waited_s))]

    def _message(self, record: Record, *, asks: bool) -> Send:
        request = record.request
        assert isinstance(request.message, m.Push | Command | EvaluationSum), record
        message = m.RecordCopy(record.number, request.sender, request.incarnation, request.message, asks)
        return Send(self.backup, message, forwarded=request.payload, reports=True)

    def validate(self) -> None:
        """Checks the invariants. Raises AssertionError."""
        numbers = list(self._under_way)
        assert numbers == list(range(self.kept + 1, self.kept + 1 + len(numbers))), (self.kept, numbers)
        assert self.follower is not None or not numbers, numbers
        assert self.follower is None or self._confirmed <= self._newest, (self._confirmed, self._newest)
