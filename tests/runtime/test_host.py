"""A host whose role raises: it reports the error until it is ended, and nothing else."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from types import FrameType

import pytest

from partita.engine.launch import ThreadLauncher
from partita.engine.launch import launcher as launcher_module
from partita.engine.launch.launcher import StillRunning
from partita.engine.protocol.events import Received
from partita.engine.protocol.host import HostTimers, PassOn, RoleMachine
from partita.engine.protocol.messages import (
    Credit,
    Directory,
    Failed,
    Heartbeat,
    Hello,
    Peer,
    Ready,
    SetUp,
    Stop,
)
from partita.engine.protocol.names import COORDINATOR
from partita.engine.runtime.host import Host
from partita.engine.runtime.task import Body, HostContext, pack_task
from partita.engine.transport import MailboxClosed

DEADLINE_S = 30.0
PART = "part 0.0"


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


ERRORS: dict[str, Callable[[], BaseException]] = {
    "a text above the largest message": lambda: ValueError("x" * (1 << 21)),
    "a lone surrogate": lambda: ValueError("\udc80"),
    "no text": Mute,
    "SystemExit": lambda: SystemExit(0),
    "KeyboardInterrupt": KeyboardInterrupt,
    "a group": lambda: BaseExceptionGroup("several", [Mute(), SystemExit(1)]),
}


@dataclass(frozen=True)
class Raising:
    """A task whose role raises at its first heartbeat."""

    error: str
    threads: int = 1
    rank: tuple[int, int] = (0, 1)

    def role(self, link: HostContext) -> tuple[RoleMachine, Body]:
        return PassOn(), RaisingBody(self.error)


class RaisingBody(Body):
    def __init__(self, error: str) -> None:
        self.error = error

    def carry_out(self, effect: Received, now: float) -> None:
        raise ERRORS[self.error]()

    def close(self) -> None:
        pass


@pytest.fixture
def launcher() -> Iterator[ThreadLauncher]:
    with ThreadLauncher() as made:
        yield made


def next_of(kind: type, launcher: ThreadLauncher) -> Received:
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        for event in launcher.mailbox.receive(0.1):
            if isinstance(event.message, kind):
                return event
    raise AssertionError(f"no {kind.__name__}")


@pytest.mark.parametrize("error", ERRORS)
def test_whatever_a_role_raises_is_reported_until_the_host_is_ended(
    error: str, launcher: ThreadLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher_module, "Host", partial(Host, timers=HostTimers(resend_s=0.01)))
    launcher.launch(PART, 0)
    hello = next_of(Hello, launcher).message
    assert isinstance(hello, Hello)
    launcher.reach(PART, 0, hello.endpoint)
    launcher.mailbox.send(PART, SetUp(""), pack_task(Raising(error)))
    next_of(Ready, launcher)
    launcher.mailbox.send(PART, Heartbeat(0))
    reports = [next_of(Failed, launcher).message for _ in range(3)]
    assert reports[0] == reports[1] == reports[2]
    assert isinstance(reports[0], Failed)
    assert reports[0].reason.startswith(type(ERRORS[error]()).__name__)
    assert f'File "{__file__}", line ' in reports[0].traceback
    assert not launcher.ended()
    launcher.mailbox.send(PART, Stop())


class Scripted:
    """A mailbox whose messages come in these batches."""

    endpoint, counters, memory = "here", None, None

    def __init__(self, *batches: list[Received]) -> None:
        self.batches = [*batches]

    def receive(self, timeout_s: float) -> list[Received]:
        return self.batches.pop(0) if self.batches else []

    def wake(self) -> None:
        pass


def test_what_a_host_sent_before_it_died_is_handled_before_the_directory_without_it() -> None:
    directory = Received(COORDINATOR, 0, Directory(3, ()), None)
    last, beat = (
        Received("shard 0", 0, Credit(1), None),
        Received(COORDINATOR, 0, Heartbeat(0), None),
    )
    host = Host(Scripted([beat, directory], [last]), "backup 0", 0, Peer(COORDINATOR, 0, "", ""))  # type: ignore[arg-type]
    seen: list[object] = []
    host._machine.receive = lambda event, now: seen.append(event) or ()  # type: ignore[method-assign,func-returns-value]
    host.turn(0.0)
    assert [one for one in seen if isinstance(one, Received)] == [last, beat, directory]


HOLD = threading.Event()


@dataclass(frozen=True)
class Stuck(Raising):
    """A task whose role does not come back."""

    def role(self, link: HostContext) -> tuple[RoleMachine, Body]:
        HOLD.wait(DEADLINE_S)
        return PassOn(), RaisingBody("SystemExit")


def test_a_thread_that_does_not_end_is_named_with_its_place() -> None:
    HOLD.clear()
    launcher = ThreadLauncher(join_s=0.05)
    launcher.launch(PART, 0)
    hello = next_of(Hello, launcher).message
    assert isinstance(hello, Hello)
    launcher.reach(PART, 0, hello.endpoint)
    launcher.mailbox.send(PART, SetUp(""), pack_task(Stuck("")))
    (thread,) = [thread for thread in threading.enumerate() if thread.name == PART]
    while not any(frame.name == "role" for frame in traceback.extract_stack(frame_of(thread))):
        pass
    try:
        with pytest.raises(
            StillRunning, match=r"the threads of part 0\.0 did not end within 0\.05 s"
        ) as stuck:
            launcher.close()
    finally:
        HOLD.set()
        thread.join(DEADLINE_S)
    assert "HOLD.wait(DEADLINE_S)" in stuck.value.__notes__[0]
    with pytest.raises(MailboxClosed):
        launcher.mailbox.receive(0)


def frame_of(thread: threading.Thread) -> FrameType:
    return sys._current_frames()[thread.ident or 0]
