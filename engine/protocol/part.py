"""The base of the machines of parts: the first directory, replaced hosts, and reports of long waits."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from partita.engine.protocol.events import Replaced, Send
from partita.engine.protocol.host import PeersChanged, RoleMachine
from partita.engine.protocol.names import COORDINATOR
from partita.engine.protocol.stall_detector import StallDetector


@dataclass(frozen=True, slots=True)
class LookForWaits:
    """Effect: look what the player waits for; `StuckOn` reports it at once."""


class PartMachine(RoleMachine):
    """A part that begins when the hosts that it needs can be reached."""

    def __init__(self, *, needed: Iterable[str], watched: Iterable[str]) -> None:
        """A part that knows nobody.

        Args:
            needed: the hosts without which it does not begin.
            watched: the hosts whose replacement matters to it.
        """
        self._needed: Final = frozenset(needed)
        self._watched: Final = sorted(watched)
        self._peers: Mapping[str, int] | None = None  # None until all needed hosts can be reached
        self._revision = 0
        self._stall_detector: Final = StallDetector()

    @abstractmethod
    def _start(self, now: float) -> Iterator[Any]:
        """Begins: all needed hosts can be reached."""

    @abstractmethod
    def _replace(self, event: Replaced, now: float) -> Iterator[Any]:
        """Goes on with the new process of a watched host."""

    def _peers_changed(self, event: PeersChanged, now: float) -> Iterator[Any]:
        known, self._revision = self._peers, event.revision
        if known is None and not self._needed <= event.peers.keys():
            return
        self._peers = event.peers
        if known is None:
            yield from self._start(now)
            return
        for name in self._watched:
            if event.peers.get(name, 0) > known.get(name, 0):
                yield from self._replace(Replaced(name, event.peers[name]), now)

    def _report_waits(self, at: object, waits: Iterable[tuple[str, str]], now: float) -> list[Send]:
        """Reports long waits: where the part is, and (host, what) that it gets no further without."""
        reports = self._stall_detector.look(at, tuple(waits), now)
        return [Send(COORDINATOR, report) for report in reports]
