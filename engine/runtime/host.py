"""A host: one mailbox, one thread, one role; in a process of its own or in a thread of the user's.

The host does the common work of all roles: hello, its task, the directory of the others, heartbeats, and
reports of errors.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final

import cloudpickle
import numpy as np
import zmq

from partita.engine.kernels.nodes.compiler import NodeCompileError
from partita.engine.protocol.events import Received
from partita.engine.protocol.failure import report_of, sentence
from partita.engine.protocol.membership import DEFAULT_HEARTBEATS
from partita.engine.protocol.messages import (
    Directory,
    DirectoryAck,
    Failed,
    Heartbeat,
    Hello,
    Message,
    Peer,
    Ready,
    Refused,
    SetUp,
    SetUpProgress,
    Stop,
)
from partita.engine.protocol.names import COORDINATOR
from partita.engine.protocol.permissions import rejection_reason
from partita.engine.runtime.compile_events import reports_compiling
from partita.engine.runtime.task import CannotGoOn, HostContext, HostTask, NeverEnds, Role, unpack_task
from partita.engine.transport.mailbox import Mailbox, PeerStalled, UnknownPeer
from partita.engine.transport.payload import PayloadLike

TICK_S: Final = 0.1
RESEND_S: Final = 1.0
HEARTBEAT_S: Final = DEFAULT_HEARTBEATS.heartbeat_s
PROGRESS_S: Final = 0.2


def versions() -> dict[str, str]:
    """The versions that all hosts of a run must share."""
    return {
        "python": platform.python_version(),
        "cloudpickle": cloudpickle.__version__,
        "numpy": np.__version__,
        "libzmq": zmq.zmq_version(),
    }


class Host:
    """A host, which runs until the coordinator stops it or is gone."""

    def __init__(
        self,
        mailbox: Mailbox,
        name: str,
        incarnation: int,
        coordinator: Peer,
        *,
        prepare: Callable[[HostTask], object] | None = None,
    ) -> None:
        """A host that has not begun.

        Args:
            mailbox: the host's own; the caller closes it.
            name: of the host.
            incarnation: the number of the process with that name.
            coordinator: the only peer whose orders count.
            prepare: called with the task, before the role is built; for a process that is the host's alone.
        """
        self._prepare = prepare
        self._mailbox = mailbox
        self._coordinator = coordinator
        self._revision = 0
        self._peers: dict[str, Peer] = {}
        self._role: Role | None = None
        self._failed: Failed | None = None
        self._stopped = False
        self._acknowledged = False  # the coordinator has received Ready
        self._sent_at = self._beat_at = self._ticked_at = self._progress_at = float("-inf")
        self._refused: set[str] = set()
        self._stalled: SimpleQueue[str] = SimpleQueue()  # peers that take nothing more
        self._context = HostContext(
            name, incarnation, self._send, mailbox.wake, mailbox.counters, self._refuse
        )

    def run(self) -> None:
        """Runs the host to its end."""
        self._mailbox.allow([self._coordinator])
        self._mailbox.connect(self._coordinator)
        try:
            self._tick_in_time()  # Hello need not wait until something comes
            with reports_compiling(self._compiling):
                while not self._stopped:
                    self._run_once()
        finally:
            if self._role is not None:
                self._role.close()

    def stop(self) -> None:
        """Ends `run` soon. From any thread."""
        self._stopped = True
        self._mailbox.wake()

    def _run_once(self) -> None:
        events = self._mailbox.receive(TICK_S)
        while not self._stalled.empty():
            self._mailbox.reconnect(self._stalled.get())
        for event in events:
            now = time.monotonic()  # each may take a while, and many may have come
            self._guarded(lambda event=event, now=now: self._receive(event, now))  # type: ignore[misc]
            self._tick_in_time()
        role = self._role
        if role is not None and self._failed is None:
            self._guarded(lambda: role.poll(time.monotonic()))
        self._tick_in_time()

    def _tick_in_time(self) -> None:
        now = time.monotonic()
        if now - self._ticked_at >= TICK_S:
            self._ticked_at = now
            self._tick(now)

    def _guarded(self, act: Callable[[], None]) -> None:
        """Reports whatever is raised, also a user's `SystemExit`; the host then waits for its end."""
        try:
            act()
        except NeverEnds as error:
            self._fail(Failed(error.reason, error.stack, stuck=True))
        except CannotGoOn as error:
            self._fail(report_of(error, final=True, expected=True))
        except BaseException as error:  # noqa: BLE001 - reported to the coordinator, whatever it is
            self._fail(report_of(error))

    def _fail(self, report: Failed) -> None:
        """Sends the report; `_tick` sends it again until the coordinator ends this host."""
        self._failed, self._sent_at = report, time.monotonic()
        self._send(COORDINATOR, report, None)

    def _tick(self, now: float) -> None:
        if self._failed is not None:
            if now - self._sent_at >= RESEND_S:
                self._fail(self._failed)
            return
        if now - self._sent_at >= RESEND_S and not self._acknowledged:
            self._sent_at = now
            if self._role is None:
                self._send(COORDINATOR, Hello(self._mailbox.endpoint, versions()), None)
            else:
                self._send(COORDINATOR, Ready(self._role.version), None)
        role = self._role
        if role is None:
            return
        if now - self._beat_at >= HEARTBEAT_S:
            self._beat_at = now
            self._send(COORDINATOR, Heartbeat(self._context.incarnation, now), None)
        self._guarded(lambda: role.tick(now))

    def _receive(self, event: Received, now: float) -> None:
        reason = rejection_reason(
            event.message, sender=event.sender, receiver=self._context.name, incarnation=event.incarnation
        )
        if reason is not None:
            self._refuse(event.sender, reason)
            return
        if self._failed is not None and not isinstance(event.message, Stop):
            return
        match event.message:
            case SetUp():
                self._set_up(event)
            case Directory() as directory:
                self._update_peers(directory, now)
            case Stop():
                self._stopped = True
            case _ if self._role is not None:
                if isinstance(event.message, Heartbeat):
                    self._acknowledged = True
                self._role.receive(event, now)

    def _set_up(self, event: Received) -> None:
        if self._role is None:
            task = unpack_task(event)
            if self._prepare is not None:
                self._prepare(task)
            try:
                self._role = task.role(self._context)
            except NodeCompileError as error:
                raise CannotGoOn(str(error)) from error
            self._sent_at = time.monotonic()
            if self._revision:
                self._pass_on(self._sent_at)
            self._send(COORDINATOR, Ready(self._role.version), None)

    def _compiling(self, compiled: int) -> None:
        now = time.monotonic()
        if now - self._progress_at >= PROGRESS_S:
            self._progress_at = now
            self._send(COORDINATOR, SetUpProgress(compiled), None)

    def _update_peers(self, directory: Directory, now: float) -> None:
        if directory.applies_to(self._revision):
            self._revision, self._peers = directory.revision, directory.applied_to(self._peers)
            self._mailbox.allow([self._coordinator, *self._peers.values()])
            for peer in directory.peers:
                self._mailbox.connect(peer)
            if self._role is not None:
                self._pass_on(now)
        self._send(COORDINATOR, DirectoryAck(self._revision), None)

    def _pass_on(self, now: float) -> None:
        assert self._role is not None
        peers = {name: peer.incarnation for name, peer in self._peers.items()}
        self._role.peers_changed(self._revision, peers, now)

    def _refuse(self, sender: str, reason: str) -> None:
        """Counts a message out of place; the first of each sender is reported to the user."""
        self._mailbox.counters.refused_messages += 1
        if sender not in self._refused:
            self._refused.add(sender)
            self._send(COORDINATOR, Refused(sender, sentence(reason)), None)

    def _send(self, to: str, message: Message, payload: PayloadLike) -> None:
        """Sends a message from any thread; only the host's own reconnects.

        A peer that is gone or takes nothing is the coordinator's to find; what it misses is sent again.
        """
        try:
            self._mailbox.send(to, message, payload)
        except UnknownPeer:
            return
        except PeerStalled:
            self._stalled.put(to)
            self._mailbox.wake()
