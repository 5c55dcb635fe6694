from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from partita.engine import cli
from partita.engine.launch import ThreadLauncher
from partita.engine.run.phases import Phases
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


# The file of a cluster.
MACHINES = """
[[machine]]
name = "m"
count = 2
memory = "1 GiB"

[link]
latency = "50 us"
bandwidth = "1 Gbit/s"
"""


class Ended(NamedTuple):
    code: object
    out: str
    err: str


Partita = Callable[..., Ended]


@pytest.fixture
def partita(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Iterator[Partita]:
    """Runs a command in this process, in a folder of its own; no phase lasts long enough to be shown."""
    monkeypatch.setattr(Phases.__init__, "__kwdefaults__", {"after_s": 3600.0, "stream": None})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("COLUMNS", "200")
    modules = set(sys.modules)

    def run(*arguments: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["partita", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = capsys.readouterr()
        return Ended(ended.value.code, said.out, said.err)

    yield run
    for name in set(sys.modules) - modules:
        if getattr(sys.modules[name], "__file__", None) and str(tmp_path) in str(sys.modules[name].__file__):
            del sys.modules[name]


def assert_one_sentence(ended: Ended, sentence: str) -> None:
    assert ended.code == 1
    assert ended.err.startswith("partita: ") and ended.err.count("\n") == 1, ended.err
    assert sentence in ended.err
