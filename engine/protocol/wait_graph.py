"""The waits of hosts for one another, from their reports, until they report progress.

It must not know how long a wait may take, nor what follows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from partita.engine.protocol.messages import AssignmentResult, Finished, Report, ResumeStep

PROGRESS_MESSAGES: Final = (AssignmentResult, ResumeStep, Finished, Report)
"""Messages by which a part reports progress."""

_SAME_S: Final = 1.0
"""Waits that began within this time are one wait, for several hosts."""


class WaitGraph:
    """The open waits. Iterates over (waiting host, other host, since when in seconds)."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, str], float] = {}

    def __iter__(self) -> Iterator[tuple[str, str, float]]:
        return iter([(who, whom, since) for (who, whom), since in self._since.items()])

    def note(self, who: str, whom: str, since: float) -> None:
        """Notes a wait for another host, which ends an earlier wait."""
        for (waiting, other), began in list(self._since.items()):
            if waiting == who and abs(began - since) > _SAME_S:
                del self._since[waiting, other]
        self._since[who, whom] = since

    def clear(self, who: str) -> None:
        """Ends all waits of a host."""
        for waiting, other in list(self._since):
            if waiting == who:
                del self._since[waiting, other]
