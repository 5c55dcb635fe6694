"""The interpreter of the coordinator: starts and ends hosts, hands out tasks, writes manifests, shows
progress.

It runs in the user's process and thread, until the coordinator says that the run is done or cannot go on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from partita.engine.launch.launcher import Launcher
from partita.engine.protocol.events import Died, Received, Refuse, Send, Tick
from partita.engine.protocol.failure import sentence
from partita.engine.protocol.messages import Assign, Hello, Refused
from partita.engine.protocol.names import COORDINATOR
from partita.engine.protocol.orders import (
    Began,
    CoordinatorEffect,
    CoordinatorEvent,
    Done,
    Fail,
    Launched,
    Opened,
    Restart,
    StopRequested,
    Warn,
)
from partita.engine.protocol.supervision import Supervision
from partita.engine.protocol.verbs import why_not
from partita.engine.runtime.task import Task, pack_task
from partita.engine.transport.mailbox import PeerStalled, UnknownPeer

TICK_S: Final = 0.1


class RunFailed(RuntimeError):
    """A run that cannot go on: one sentence; the traceback of the host that failed is its note."""

    def with_hint(self, hint: str) -> RunFailed:
        """The same with what can be done now."""
        told = RunFailed(f"{str(self).rstrip('.')}; {hint}" if hint else str(self))
        for note in getattr(self, "__notes__", ()):
            told.add_note(note)
        return told


class Supervisor:
    """Carries out what the coordinator asks for, in order."""

    def __init__(
        self,
        launcher: Launcher,
        coordinator: Supervision,
        *,
        task_of: Callable[[str, int | None], Task],
        keep: Callable[[CoordinatorEffect], None],
        warn: Callable[[str], None],
    ) -> None:
        """A run that has not started.

        Args:
            launcher: where hosts are started.
            coordinator: what decides.
            task_of: the task of a host that starts from a checkpoint (None: from the beginning).
            keep: carries out what is the driver's own business: writes manifests, shows how far it is.
            warn: shows a line.
        """
        self._launcher, self._coordinator = launcher, coordinator
        self._task_of, self._keep, self._warn = task_of, keep, warn
        self._from: dict[str, int | None] = {}
        self._done: Done | None = None
        self._stop_requested = False
        self._refused: set[str] = set()

    def request_stop(self) -> None:
        """Ends the run soon, with a last checkpoint. From a signal handler or another thread."""
        self._stop_requested = True
        self._launcher.mailbox.wake()

    def run(self) -> Done:
        """Until the run is over.

        Raises:
            RunFailed: it cannot go on.
        """
        self._tell(Opened())
        told_stop, ticked_at = False, float("-inf")
        while self._done is None:
            until_s = self._coordinator.wakes_at - time.monotonic()
            for event in self._launcher.mailbox.receive(min(max(until_s, 0.0), TICK_S)):
                self._receive(event)
            for name, incarnation in self._launcher.began():
                self._tell(Began(name, incarnation))
            for name, incarnation, reason in self._launcher.ended():
                self._tell(Died(name, incarnation, reason))
            if self._stop_requested and not told_stop:
                told_stop = True
                self._warn("stopping, after a last checkpoint; Ctrl-C again ends the run at once")
                self._tell(StopRequested())
            now = time.monotonic()
            if now - ticked_at >= TICK_S or now >= self._coordinator.wakes_at:
                ticked_at = now
                self._tell(Tick())
        return self._done

    def _receive(self, event: Received) -> None:
        """What a host may not say has no effect."""
        reason = why_not(
            event.message, sender=event.sender, receiver=COORDINATOR, incarnation=event.incarnation
        )
        match event.message:
            case _ if reason is not None:
                self._refuse(event.sender, reason)
                return
            case Hello(endpoint=endpoint):
                try:
                    self._launcher.reach(event.sender, event.incarnation, endpoint)
                except ValueError as error:
                    self._refuse(event.sender, f"a Hello: {error}")
                    return
            case Refused(by=by, reason=why):
                self._warn(f"{event.sender} refused what {sentence(by)} sent: {sentence(why)}")
        self._tell(event)

    def _refuse(self, sender: str, reason: str) -> None:
        self._launcher.mailbox.counters.refused_messages += 1
        if sender not in self._refused:
            self._refused.add(sender)
            self._warn(f"the coordinator refused what {sender} sent: {sentence(reason)}")

    def _tell(self, event: CoordinatorEvent) -> None:
        if self._done is None:
            for effect in self._coordinator.receive(event, time.monotonic()):
                self._carry_out(effect)

    def _carry_out(self, effect: CoordinatorEffect) -> None:
        match effect:
            case Send():
                self._send(effect)
            case Restart():
                self._restart(effect)
            case Refuse(sender=sender, reason=reason):
                self._refuse(sender, reason)
            case Warn(text=text):
                self._warn(text)
            case Done():
                self._done = effect
            case Fail(reason=reason, traceback=traceback):
                failure = RunFailed(reason)
                if traceback:
                    failure.add_note(traceback)
                raise failure
            case _:
                self._keep(effect)

    def _send(self, effect: Send) -> None:
        payload = None
        if isinstance(effect.message, Assign):
            payload = pack_task(self._task_of(effect.to, self._from[effect.to]))
        try:
            self._launcher.mailbox.send(effect.to, effect.message, payload)
        except UnknownPeer:
            return  # it has just ended; the coordinator will hear of that
        except PeerStalled:
            self._launcher.mailbox.renew(effect.to)  # what it misses is sent again, or it is dead

    def _restart(self, restart: Restart) -> None:
        for name, incarnation in restart.hosts:
            self._from[name] = restart.checkpoint
            host = self._launcher.launch(name, incarnation)
            self._tell(Launched(name, incarnation, host.public_key, host.machine))
