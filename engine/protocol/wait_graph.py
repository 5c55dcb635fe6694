"""The waits of hosts for one another, from their reports, until they report progress.

It must not know how long a wait may take, nor what follows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from partita.engine.protocol.batch_messages import AssignmentResult
from partita.engine.protocol.messages import Finished, Report, ResumeStep
from partita.engine.protocol.validation_messages import ValidationResult

PROGRESS_MESSAGES: Final = (AssignmentResult, ResumeStep, Finished, Report, ValidationResult)
"""Messages by which a part reports progress."""

_SAME_S: Final = 1.0
"""Waits that began within this time are one wait, for several hosts."""


class WaitGraph:
    """The open waits. Iterates over (waiting host, other host, since when in seconds)."""

    def __init__(self) -> None:
        self._since: dict[str, dict[str, float]] = {}  # waiting host -> other host -> since when

    def __iter__(self) -> Iterator[tuple[str, str, float]]:
        return iter([(host, *wait) for host, waits in self._since.items() for wait in waits.items()])

    def of(self, host: str) -> Iterable[str]:
        """Returns the hosts that this one waits for."""
        return self._since.get(host, ())

    def note(self, host: str, other: str, since: float) -> None:
        """Notes a wait for another host, which ends the host's earlier waits."""
        waits = self._since.get(host, {})
        kept = {name: began for name, began in waits.items() if abs(began - since) <= _SAME_S}
        self._since[host] = kept | {other: since}

    def clear(self, host: str) -> None:
        """Ends all waits of a host."""
        self._since.pop(host, None)
