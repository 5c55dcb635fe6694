"""Requests that are not answered yet, and when each is sent again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Generic, TypeVar

BACKOFF_DOUBLINGS: Final = 4
"""Doublings of the wait before a request is sent again: a slow host is not flooded."""

RequestT = TypeVar("RequestT")


@dataclass(slots=True)
class PendingRequest(Generic[RequestT]):
    """A request under way: its message (or number), when it was last sent, and how often it was repeated."""

    message: RequestT
    sent_at: float
    repeats: int = 0

    def retry(self, now: float, retry_s: float) -> bool:
        """Returns whether to send it again now, and counts that; each wait is longer than the one before."""
        if now - self.sent_at < retry_s * 2.0 ** min(self.repeats, BACKOFF_DOUBLINGS):
            return False
        self.sent_at, self.repeats = now, self.repeats + 1
        return True

    def restart(self, now: float) -> None:
        """Counts as sent for the first time: another process answers, or the answer is due soon."""
        self.sent_at, self.repeats = now, 0
