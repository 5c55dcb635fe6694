"""The waits of hosts for one another, from their reports, until they report progress.

It must not know how long a wait may take, nor what follows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
        return iter([(host, other, since) for (host, other), since in self._since.items()])

    def note(self, host: str, other: str, since: float) -> None:
        """Notes a wait for another host, which ends the host's earlier waits."""
        self._drop(host, lambda began: abs(began - since) > _SAME_S)
        self._since[host, other] = since

    def clear(self, host: str) -> None:
        """Ends all waits of a host."""
        self._drop(host, lambda began: True)

    def _drop(self, host: str, ended: Callable[[float], bool]) -> None:
        for (waiting, other), began in list(self._since.items()):
            if waiting == host and ended(began):
                del self._since[waiting, other]
