from __future__ import annotations

import sys
from typing import Any

import pytest

from partita.engine.launch import ThreadLauncher
from partita.engine.transport import Mailbox


class WatchedThreads(ThreadLauncher):
    """Hosts as threads, whose mailboxes (and their counters) can be looked at afterwards."""

    def __init__(self, **_: object) -> None:
        super().__init__()
        self.boxes: dict[str, Mailbox] = {}
        make = self._network.mailbox

        def recorded(name: str, **bounds: Any) -> Mailbox:
            self.boxes[name] = made = make(name, **bounds)
            return made

        self._network.mailbox = recorded  # type: ignore[assignment,method-assign]


def run_on_threads(monkeypatch: pytest.MonkeyPatch) -> list[WatchedThreads]:
    """Trainings run on threads of this process; the launchers of those that have begun."""
    begun: list[WatchedThreads] = []

    def launcher(**arguments: object) -> WatchedThreads:
        begun.append(WatchedThreads(**arguments))
        return begun[-1]

    monkeypatch.setattr(sys.modules["partita.engine.run.train"], "ProcessLauncher", launcher)
    return begun


@pytest.fixture
def on_threads(monkeypatch: pytest.MonkeyPatch) -> list[WatchedThreads]:
    """See `run_on_threads`."""
    return run_on_threads(monkeypatch)
