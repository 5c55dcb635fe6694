"""The interpreter of any coordinator: starts and ends hosts, assigns tasks, writes manifests, shows progress.

It runs in the user's process and thread: a training until its coordinator reports that the run is done or
cannot go on, a session while it waits for answers. Slow work runs on two threads of its own: one packs tasks,
the other writes to the disk, in order; heartbeats and leases are answered meanwhile.
"""

from __future__ import annotations

import gc
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

from partita.engine.files.background import BackgroundQueue
from partita.engine.launch.launcher import Launcher
from partita.engine.protocol.coordinator_effects import (
    AbortRun,
    AppendJournal,
    Commit,
    Committed,
    CoordinatorEvent,
    EndHosts,
    EndRun,
    HostObserved,
    Launched,
    Misbehaved,
    NotCommitted,
    Opened,
    ProcessStarted,
    Restart,
    StopRequested,
    Warn,
)
from partita.engine.protocol.events import Died, Received, Refuse, Send, Tick
from partita.engine.protocol.failure import RunFailed, sentence
from partita.engine.protocol.host_lifecycle import HostLifecycle
from partita.engine.protocol.messages import Hello, SetUp
from partita.engine.protocol.names import COORDINATOR
from partita.engine.protocol.permissions import rejection_reason
from partita.engine.runtime.task import HostTask, pack_task
from partita.engine.transport.mailbox import PeerStalled, UnknownPeer
from partita.engine.transport.payload import Payload, PayloadLike

TICK_S: Final = 0.1


class Work(ABC):
    """The effects that are not the same for all coordinators."""

    @abstractmethod
    def task_of(self, name: str, checkpoint: int | None) -> HostTask:
        """Makes the task of a host that starts from a checkpoint (None: from the beginning).

        Called on the thread that packs tasks.
        """

    def task_from_backup(self, name: str) -> HostTask:
        """Makes the task of a shard that starts from its backup. Called on the same thread."""
        raise AssertionError(name)

    @abstractmethod
    def note(self, effect: Any) -> None:
        """Carries out an effect that the supervisor does not know: shows the progress of the run."""

    def record(self, record: AppendJournal) -> None:
        """Writes an entry of the journal. In order, from one thread at a time. Raises OSError."""
        raise AssertionError(record)

    def commit(self, commit: Commit) -> str | None:
        """Writes a manifest and removes what it replaces; returns what could not be removed, as a sentence.

        Called on the thread of the disk. Raises OSError or ValueError where the manifest cannot be written.
        """
        raise AssertionError(commit)

    def note_commit(self, commit: Commit) -> None:  # noqa: B027 - only trainings have callbacks
        """Notes what belongs to a checkpoint that is about to be completed."""

    def committed(self, checkpoint: int) -> None:  # noqa: B027 - likewise
        """Notes that a checkpoint is complete."""

    def look(self) -> tuple[Sequence[CoordinatorEvent], str]:
        """Returns events for the coordinator, and why the run is to be ended now; "": it is not."""
        return (), ""

    def payload(self, send: Send) -> PayloadLike:
        """Returns the payload of a message that has one."""
        raise AssertionError(send)

    def failure(self, abort: AbortRun) -> Exception:
        """Returns the error by which the run ends."""
        return RunFailed.of(abort.reason, abort.traceback)


class Observer(Protocol):
    """A watcher of what a coordinator sees and asks for; it changes nothing. Times are `time.monotonic`."""

    def saw_event(self, event: Any, now: float) -> None:
        """Called with each event, before the coordinator handles it."""

    def saw_effect(self, effect: Any, now: float) -> None:
        """Called with each effect, before it is carried out."""

    def look(self, coordinator: HostLifecycle, now: float) -> None:
        """Called about ten times a second."""


@contextmanager
def _frozen() -> Iterator[None]:
    """Keeps the objects that exist out of collections: with large libraries one takes a tenth of a second,
    as long as hundreds of small evaluations.
    """
    own = not gc.get_freeze_count()
    if own:
        gc.freeze()
    try:
        yield
    finally:
        if own:
            gc.unfreeze()


@dataclass(frozen=True)
class _Packed:
    """A packed task, for the process that asked for it."""

    assign: Send
    incarnation: int
    payload: bytes


class Supervisor:
    """Carries out the coordinator's effects, in order."""

    def __init__(
        self,
        launcher: Launcher,
        coordinator: HostLifecycle,
        work: Work,
        *,
        warn: Callable[[str], object],
        observer: Observer | None = None,
    ) -> None:
        """A run that has not started.

        Args:
            launcher: starts the hosts.
            coordinator: makes the decisions.
            work: the driver's part.
            warn: shows a line.
            observer: sees all events and effects.
        """
        self._launcher, self._coordinator = launcher, coordinator
        self._work, self._warn, self._observer = work, warn, observer
        # The incarnation of each host, the checkpoint it starts from, and whether from its backup instead.
        self._from: dict[str, tuple[int, int | None, bool]] = {}
        self._packing: set[tuple[str, int]] = set()
        self._packed: Final[BackgroundQueue[_Packed]] = BackgroundQueue("tasks", launcher.mailbox.wake)
        self._disk: Final[BackgroundQueue[tuple[CoordinatorEvent, str | None] | None]] = BackgroundQueue(
            "disk", launcher.mailbox.wake
        )
        self._has_journal = False
        self._done: EndRun | None = None
        self._stop_requested = self._sent_stop = False
        self._ticked_at = float("-inf")
        self._refused: set[str] = set()
        self.payload: Payload | None = None
        """Payload of the message that the coordinator has just received."""

    def request_stop(self) -> None:
        """Ends the run soon, with a last checkpoint. From a signal handler or another thread."""
        self._stop_requested = True
        self._launcher.mailbox.wake()

    def run(self) -> EndRun:
        """Runs a training to its end.

        Raises:
            RunFailed: the run cannot go on.
            ValueError: a task cannot be packed.
            OSError: the journal cannot be written.
        """
        try:
            with _frozen():
                self.dispatch(Opened())
                self.run_until(lambda: self._done is not None)
        finally:
            self.close()
        self._look_at_disk()  # raises if an entry of the journal was not written
        assert self._done is not None
        return self._done

    def close(self) -> None:
        """Ends the threads, when they have done what was asked of them."""
        self._packed.close()
        self._disk.close()

    def run_until(self, condition: Callable[[], bool]) -> None:
        """Carries out what the coordinator decides until something is the case. Raises as `run` does."""
        coordinator, receive = self._coordinator, self._launcher.mailbox.receive
        while not condition():
            until_s = coordinator.wakes_at - time.monotonic()
            for event in receive(min(max(until_s, 0.0), TICK_S)):
                self._receive(event)
                self._stop_if_asked()
            self._send_packed()
            self._look_at_disk()
            self._look_at_work()
            self._stop_if_asked()
            now = time.monotonic()
            if now - self._ticked_at >= TICK_S or now >= coordinator.wakes_at:
                self._ticked_at = now
                self._look_at_processes()
                self.dispatch(Tick())
                if self._observer is not None:
                    self._observer.look(coordinator, now)

    def _look_at_work(self) -> None:
        events, reason = self._work.look()
        for event in events:
            self.dispatch(event)
        if reason and not self._sent_stop:
            self._sent_stop = True
            self._warn(f"stopping, after a last checkpoint: {reason}")
            self.dispatch(StopRequested())

    def _stop_if_asked(self) -> None:
        if self._stop_requested and not self._sent_stop:
            self._sent_stop = True
            self._warn("stopping, after a last checkpoint; Ctrl-C again ends the run at once")
            self.dispatch(StopRequested())

    def _look_at_processes(self) -> None:
        for name, incarnation in self._launcher.began():
            self.dispatch(ProcessStarted(name, incarnation))
        for name, incarnation, reason in self._launcher.ended():
            self.dispatch(Died(name, incarnation, reason))

    def _receive(self, event: Received) -> None:
        """Passes a message to the coordinator, unless its sender lacks the permission."""
        reason = rejection_reason(
            event.message, sender=event.sender, receiver=COORDINATOR, incarnation=event.incarnation
        )
        match event.message:
            case _ if reason is not None:
                self.dispatch(Misbehaved(event.sender, event.incarnation, reason))
                return
            case Hello(endpoint=endpoint):
                try:
                    self._launcher.reach(event.sender, event.incarnation, endpoint)
                except ValueError as error:
                    self.dispatch(Misbehaved(event.sender, event.incarnation, f"a Hello: {error}"))
                    return
        assert event.payload is None or isinstance(event.payload, Payload)
        self.payload = event.payload
        self.dispatch(event)

    def _refuse(self, sender: str, reason: str) -> None:
        self._launcher.mailbox.counters.refused_messages += 1
        if sender not in self._refused:
            self._refused.add(sender)
            self._warn(f"the coordinator refused what {sender} sent: {sentence(reason)}")

    def dispatch(self, event: Any) -> None:
        """Gives the coordinator an event, and carries out its effects."""
        if self._done is not None:
            return
        now, observer = time.monotonic(), self._observer
        if observer is None:
            for effect in self._coordinator.receive(event, now):
                self._carry_out(effect)
            return
        observer.saw_event(event, now)
        for effect in self._coordinator.receive(event, now):
            observer.saw_effect(effect, now)
            self._carry_out(effect)

    def _carry_out(self, effect: Any) -> None:
        match effect:
            case Send(payload=None):
                self._send(effect, None)
            case Send(message=SetUp()):
                self._pack(effect)
            case Send():
                self._send(effect, self._work.payload(effect))
            case AppendJournal():
                self._record(effect)
            case Commit():
                self._work.note_commit(effect)
                self._disk.start(partial(self._committed, effect))
            case Restart():
                self._restart(effect)
            case EndHosts(hosts=hosts):
                for name in hosts:
                    self._launcher.end(name)
            case Refuse(sender=sender, reason=reason):
                self._refuse(sender, reason)
            case Warn(text=text):
                self._warn(text)
            case HostObserved():
                pass  # for the observer alone
            case EndRun():
                self._done = effect
            case AbortRun():
                raise self._work.failure(effect)
            case _:
                self._work.note(effect)

    def _record(self, record: AppendJournal) -> None:
        """Writes an entry at once, in microseconds; the first entry creates the journal, and none overtakes
        it.
        """
        if self._has_journal and self._disk.idle:
            self._work.record(record)
        else:
            self._has_journal = True
            self._disk.start(partial(self._work.record, record))

    def _committed(self, commit: Commit) -> tuple[CoordinatorEvent, str | None]:
        try:
            return Committed(commit.checkpoint), self._work.commit(commit)
        except (OSError, ValueError) as error:
            return NotCommitted(commit.checkpoint, str(error)), None

    def _look_at_disk(self) -> None:
        for done in self._disk.finished():
            if done is not None:
                event, trouble = done
                self.dispatch(event)
                if isinstance(event, Committed):
                    self._work.committed(event.checkpoint)
                if trouble is not None:
                    self._warn(trouble)

    def _pack(self, assign: Send) -> None:
        """Packs a task on the other thread. A process that asks again meanwhile gets the same one."""
        name = assign.to
        incarnation, checkpoint, from_backup = self._from[name]

        def packed() -> _Packed:
            work = self._work
            task = work.task_from_backup(name) if from_backup else work.task_of(name, checkpoint)
            return _Packed(assign, incarnation, pack_task(task))

        if (name, incarnation) not in self._packing:
            self._packing.add((name, incarnation))
            self._packed.start(packed)

    def _send_packed(self) -> None:
        """Sends the tasks that are packed, unless another process has taken the host's place."""
        for packed in self._packed.finished():
            name = packed.assign.to
            self._packing.discard((name, packed.incarnation))
            if self._done is None and self._from[name][0] == packed.incarnation:
                self._send(packed.assign, packed.payload)

    def _send(self, effect: Send, payload: PayloadLike) -> None:
        try:
            self._launcher.mailbox.send(effect.to, effect.message, payload)
        except UnknownPeer:
            return  # it has just ended, which the coordinator will receive as an event
        except PeerStalled:
            self._launcher.mailbox.reconnect(effect.to)  # lost messages are sent again, or the host is dead

    def _restart(self, restart: Restart) -> None:
        for name, incarnation in restart.hosts:
            self._from[name] = incarnation, restart.checkpoint, restart.from_backup
            host = self._launcher.launch(name, incarnation)
            self.dispatch(Launched(name, incarnation, host.public_key, host.machine))
