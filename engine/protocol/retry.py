"""What was sent and not yet answered: when it is due to be sent again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

BACKOFF_DOUBLINGS: Final = 4
"""The wait before something is sent again doubles this often: a host that is merely slow is not flooded."""


@dataclass(slots=True)
class PendingRequest:
    """Something on its way to a host: its number, when it was last sent, and how often it was sent again."""

    number: int
    at: float
    again: int = 0

    def is_due(self, now: float, retry_s: float) -> bool:
        """Whether nothing was heard for too long."""
        return now - self.at >= retry_s * 2.0 ** min(self.again, BACKOFF_DOUBLINGS)

    def repeat(self, now: float) -> None:
        """It is sent again: the next time it takes longer."""
        self.at, self.again = now, self.again + 1

    def renew(self, now: float) -> None:
        """It is sent as if for the first time: somebody else answers it, or it is wanted soon."""
        self.at, self.again = now, 0
