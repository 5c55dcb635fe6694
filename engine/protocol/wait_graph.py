"""Parts that wait for other hosts, as they have said, until they say that they get on.

It must not know how long that is borne, nor what follows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from partita.engine.protocol.messages import AssignmentResult, Finished, Report, ResumeStep

PROGRESS_MESSAGES: Final = (AssignmentResult, ResumeStep, Finished, Report)
"""What a part says when it has got on."""

_SAME_S: Final = 1.0
"""Waits that began at about the same time are one wait, for several hosts."""


class WaitGraph:
    """Who waits for whom, and since when. Iterates over (who, whom, since in seconds)."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, str], float] = {}

    def __iter__(self) -> Iterator[tuple[str, str, float]]:
        return iter([(who, whom, since) for (who, whom), since in self._since.items()])

    def note(self, who: str, whom: str, since: float) -> None:
        """A host waits for another one. A wait that it had before is over."""
        for (waiting, other), began in list(self._since.items()):
            if waiting == who and abs(began - since) > _SAME_S:
                del self._since[waiting, other]
        self._since[who, whom] = since

    def clear(self, who: str) -> None:
        """This host waits for nobody any more."""
        for waiting, other in list(self._since):
            if waiting == who:
                del self._since[waiting, other]
