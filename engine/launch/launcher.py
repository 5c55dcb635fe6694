"""Launchers: the interface, the coordinator's mailbox, and hosts as threads of this process."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import ClassVar, Final, Self

import msgspec

from partita.engine.files.server import FileHost
from partita.engine.kernels.products.blas import blas_on_one_thread
from partita.engine.protocol.messages import Peer
from partita.engine.protocol.names import COORDINATOR
from partita.engine.runtime.host import Host
from partita.engine.transport.in_process import InProcessNetwork
from partita.engine.transport.mailbox import Mailbox

JOIN_S: Final = 30.0
"""Seconds that a host on a thread may take to end: a computation that is under way is finished first."""

_SHOWN_FRAMES: Final = 8


class Launcher(ABC):
    """Starts and ends the hosts of one run. Belongs to one thread, which should be the main one."""

    mailbox: Mailbox
    """The mailbox of the coordinator."""

    files: FileHost | None = None
    """The host that serves files to hosts on other machines, where there may be any."""

    kind: ClassVar[tuple[str, str]]
    """Words for one of its hosts, and for several."""

    def __init__(self) -> None:
        self._running: dict[str, Peer] = {}

    def launch(self, name: str, incarnation: int) -> Peer:
        """Starts a host, after ending an older one of this name and revoking its key.

        Returns:
            The host with its new key and the label of its machine; its endpoint follows by `reach`.
        """
        self.end(name)
        self._running[name] = started = self._start(name, incarnation)
        self._admit()
        return started

    def _admit(self) -> None:
        """Lets the running hosts send, and no others."""
        self.mailbox.allow(self._running.values())
        if self.files is not None:
            self.files.admit(self._running.values())

    def reach(self, name: str, incarnation: int, endpoint: str) -> None:
        """Connects to a process that has reported its endpoint; ignores one that has been replaced meanwhile.

        Raises:
            ValueError: the endpoint cannot be one.
        """
        known = self._running.get(name)
        if known is None or known.incarnation != incarnation:
            return
        self._running[name] = msgspec.structs.replace(known, endpoint=endpoint)
        self.mailbox.connect(self._running[name])

    @property
    def peers(self) -> tuple[Peer, ...]:
        """Every running host whose endpoint is known."""
        return tuple(peer for peer in self._running.values() if peer.endpoint)

    def end(self, name: str) -> None:
        """Ends a host at once, if it runs."""
        if name in self._running:
            del self._running[name]
            self._admit()
            self.mailbox.disconnect(name)
            self._stop([name])

    def began(self) -> list[tuple[str, int]]:
        """Returns the hosts whose process began to run since the last call: name, incarnation."""
        return []

    @abstractmethod
    def ended(self) -> list[tuple[str, int, str]]:
        """Returns the hosts that have ended by themselves since the last call: name, incarnation, reason."""

    def close(self, *, patience_s: float = 0.5) -> None:
        """Waits for hosts that have received `Stop`, ends those that do not stop, and closes the mailbox."""
        self._running.clear()
        try:
            self._stop(self._started(), patience_s=patience_s)
        finally:
            if self.files is not None:
                self.files.close()
            self.mailbox.close()

    @abstractmethod
    def _start(self, name: str, incarnation: int) -> Peer: ...

    @abstractmethod
    def _started(self) -> list[str]:
        """Every host that was started and not yet stopped, whatever interrupted what came after."""

    @abstractmethod
    def _stop(self, names: Iterable[str], *, patience_s: float = 0.0) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(patience_s=0.0 if kind is not None else 0.5)


class StillRunning(RuntimeError):
    """Threads that did not end in time; the note shows where they are."""

    def __init__(self, threads: Sequence[threading.Thread], *, after_s: float) -> None:
        names = ", ".join(thread.name for thread in threads)
        super().__init__(
            f"the threads of {names} did not end within {after_s:g} s, and a thread cannot be killed; "
            "see below where they are, or use processes"
        )
        frames = sys._current_frames()
        for thread in threads:
            if thread.ident in frames:
                stack = "".join(traceback.format_stack(frames[thread.ident])[-_SHOWN_FRAMES:])
                self.add_note(f"{thread.name} is at:\n{stack}")


class ThreadLauncher(Launcher):
    """Hosts as threads of this process, without processes or sockets: for single steps, and for tests.

    A host ends when it receives `Stop`; a thread cannot be killed.
    """

    kind = ("thread", "threads")

    def __init__(self, *, join_s: float = JOIN_S) -> None:
        """No host runs yet.

        Args:
            join_s: seconds that hosts may take to stop, before `close` and `end` raise `StillRunning`.
        """
        super().__init__()
        self._join_s = join_s
        self._network = InProcessNetwork()
        self.mailbox = self._network.mailbox(COORDINATOR)
        self._threads: dict[str, tuple[Host, threading.Thread]] = {}

    def _start(self, name: str, incarnation: int) -> Peer:
        mailbox = self._network.mailbox(name, incarnation=incarnation)
        coordinator = Peer(COORDINATOR, 0, self.mailbox.endpoint, self.mailbox.public_key)
        host = Host(mailbox, name, incarnation, coordinator)

        def live() -> None:
            with mailbox, blas_on_one_thread():
                host.run()

        thread = threading.Thread(target=live, name=name, daemon=True)
        self._threads[name] = host, thread
        thread.start()
        return Peer(name, incarnation, "", mailbox.public_key)

    def ended(self) -> list[tuple[str, int, str]]:
        """Returns threads that have ended although they were not stopped."""
        found = [
            (name, self._running[name].incarnation, "its thread ended")
            for name, (_, thread) in self._threads.items()
            if name in self._running and not thread.is_alive()
        ]
        for name, _, _ in found:
            del self._threads[name]
        return found

    def _started(self) -> list[str]:
        return list(self._threads)

    def _stop(self, names: Iterable[str], *, patience_s: float = 0.0) -> None:
        stopped = [self._threads.pop(name) for name in names if name in self._threads]
        for host, _ in stopped:
            host.stop()
        until = time.monotonic() + self._join_s
        for _, thread in stopped:
            thread.join(max(until - time.monotonic(), 0.0))
        left = [thread for _, thread in stopped if thread.is_alive()]
        if left:
            raise StillRunning(left, after_s=self._join_s)
