"""The interpreter of a host's machine: one mailbox, one thread, one role; in a process of its own or in a
thread of the user's.

It decides nothing: `protocol.host` says what is sent and repeated, the role's machine what is done, and this
module carries that out with the mailbox, the clock and the role's body.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Final

from partita.engine.files.access import HostFiles, RemoteFiles
from partita.engine.kernels.nodes.errors import NodeCompileError
from partita.engine.protocol.events import Delivered, Received, Refuse, Send, Tick
from partita.engine.protocol.failure import report_of
from partita.engine.protocol.host import (
    DEFAULT_TIMERS,
    BuildRole,
    Compiled,
    EndHost,
    HostMachine,
    HostMeasured,
    HostTimers,
    MeasureHost,
    Raised,
    Reach,
    RoleBuilt,
)
from partita.engine.protocol.messages import Directory, Failed, Message, Peer, SetUpProgress
from partita.engine.protocol.names import COORDINATOR
from partita.engine.runtime.compile_events import reports_compiling
from partita.engine.runtime.measured_host import HostMeter
from partita.engine.runtime.task import Body, CannotGoOn, HostContext, HostTask, NeverEnds, unpack_task
from partita.engine.runtime.versions import versions
from partita.engine.transport.mailbox import Mailbox, PeerStalled, UnknownPeer
from partita.engine.transport.payload import PayloadLike

TICK_S: Final = 0.1
_OF_HOSTS: Final = (BuildRole, Reach, Refuse, EndHost, MeasureHost)


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
        timers: HostTimers = DEFAULT_TIMERS,
        interruptible: bool = False,
        files: HostFiles | None = None,
    ) -> None:
        """A host that has not begun.

        Args:
            mailbox: the host's own; the caller closes it.
            name: of the host.
            incarnation: the number of the process with that name.
            coordinator: the only peer whose orders count.
            prepare: called with the task, before the role is built; for a process that is the host's alone.
            timers: when what was not answered is repeated.
            interruptible: whether a KeyboardInterrupt is not an error but the user's, and raised again.
            files: opens the files of the run; the host closes it. By their paths if not given.
        """
        self._files: Final = files or HostFiles()
        if isinstance(files, RemoteFiles):
            files.on_wait = self._alive
        self._passed: Final = (KeyboardInterrupt,) if interruptible else ()
        self._prepare = prepare
        self._mailbox = mailbox
        self._coordinator = coordinator
        self._machine = HostMachine(
            name, incarnation, endpoint=mailbox.endpoint, versions=versions(), timers=timers
        )
        self._body: Body | None = None
        self._meter: Final = HostMeter(name, mailbox.counters)
        self._stopped = False
        self._now = self._ticked_at = float("-inf")  # of the last event, of the last tick
        self._stalled: SimpleQueue[str] = SimpleQueue()  # peers that take nothing more
        self._context = HostContext(
            name,
            incarnation,
            self._send,
            mailbox.wake,
            mailbox.counters,
            self._refuse,
            mailbox.memory,
            self._files,
        )

    def run(self) -> None:
        """Runs the host to its end."""
        try:
            self.begin()
            with reports_compiling(lambda compiled: self._give(Compiled(compiled))):
                while not self._stopped:
                    self.turn(TICK_S)
        finally:
            self.close()

    def begin(self) -> None:
        """Sends the first message. Then `turn` is to be called again and again, and `close` at the end."""
        self._mailbox.allow([self._coordinator])
        self._mailbox.connect(self._coordinator)
        self._tick_in_time()  # Hello need not wait until something comes

    def close(self) -> None:
        """Ends the threads of the role, and what it has open."""
        try:
            if self._body is not None:
                self._body.close()
        finally:
            self._files.close()

    @property
    def stopped(self) -> bool:
        """Returns whether the host has come to its end."""
        return self._stopped

    def stop(self) -> None:
        """Ends `run` soon. From any thread."""
        self._stopped = True
        self._mailbox.wake()

    def turn(self, timeout_s: float) -> None:
        """Waits for messages, at most so long, and does all that is to be done."""
        events = self._mailbox.receive(timeout_s)
        if any(type(event.message) is Directory for event in events):
            events = self._with_last_messages(events)
        while not self._stalled.empty():
            self._mailbox.reconnect(self._stalled.get())
        for event in events:
            self._give(event)
            if self._now - self._ticked_at >= TICK_S:
                self._tick_in_time()
        self._poll()
        self._tick_in_time()
        if self._machine.rest_s and not self._stopped:
            time.sleep(self._machine.rest_s)

    def _with_last_messages(self, events: list[Received]) -> list[Received]:
        """Adds what else is there, the coordinator's messages last.

        A directory may take out a host. What that has sent to this machine's memory before, and its receiver
        counts as delivered, is handled before the directory is.
        """
        found = [*events, *self._mailbox.receive(0.0)]
        return sorted(found, key=lambda event: event.sender == COORDINATOR)

    def _poll(self) -> None:
        if self._body is None or self._machine.failed:
            return
        try:
            for result in self._body.poll(time.monotonic()):
                self._interpret(result)
        except self._passed:
            raise
        except BaseException as error:  # noqa: BLE001 - reported to the coordinator, whatever it is
            self._interpret(Raised(_report(error)))

    def _tick_in_time(self) -> None:
        now = time.monotonic()
        if now - self._ticked_at >= TICK_S:
            self._ticked_at = now
            self._give(Tick())
            self._look()

    def _look(self) -> None:
        """Lets the body look for what takes too long."""
        if self._body is not None and not self._machine.failed:
            try:
                self._body.tick(time.monotonic())
            except self._passed:
                raise
            except BaseException as error:  # noqa: BLE001 - as above
                self._interpret(Raised(_report(error)))

    def _give(self, event: Any) -> None:
        """Gives the machine an event. Whatever is raised, also a user's `SystemExit`, is reported; the host
        then waits for its end.
        """
        try:
            self._interpret(event)
        except self._passed:
            raise
        except BaseException as error:  # noqa: BLE001 - as above
            self._interpret(Raised(_report(error)))

    def _interpret(self, event: Any) -> None:
        """Carries out the effects of an event, and of the results that are there at once."""
        results: list[Any] = []
        self._now = time.monotonic()
        for effect in self._machine.receive(event, self._now):
            result = self._carry_out(effect)
            if result is not None:
                results.append(result)
        for result in results:
            self._interpret(result)

    def _carry_out(self, effect: Any) -> Any:
        if isinstance(effect, Send):
            if self._machine.may_send(effect.message, time.monotonic()):
                has_payload = effect.payload is not None or effect.forwarded is not None
                payload = self._payload(effect) if has_payload else None
                if self._transmit(effect.to, effect.message, payload) and effect.reports:
                    return Delivered(effect.to, effect.message)
            return None
        if self._body is not None and not isinstance(effect, _OF_HOSTS):
            return self._body.carry_out(effect, time.monotonic())
        match effect:
            case BuildRole(task=task):
                return self._build(task)
            case Reach(peers=peers, new=new):
                self._mailbox.allow([self._coordinator, *peers])
                for peer in new:
                    self._mailbox.connect(peer)
            case Refuse():
                self._mailbox.counters.refused_messages += 1
            case MeasureHost():
                return self._measure(effect)
            case EndHost():
                self._stopped = True
            case _:
                raise AssertionError(effect)
        return None

    def _measure(self, measure: MeasureHost) -> HostMeasured:
        assert self._body is not None, measure
        return HostMeasured(self._meter.report(measure, self._body.observed(measure.watch)))

    def _payload(self, send: Send) -> PayloadLike:
        assert self._body is not None, send
        return self._body.payload(send)

    def _build(self, received: Received) -> RoleBuilt:
        task = unpack_task(received)
        if self._prepare is not None:
            self._prepare(task)
        try:
            machine, self._body = task.role(self._context)
        except NodeCompileError as error:
            raise CannotGoOn(str(error)) from error
        return RoleBuilt(machine)

    def _alive(self) -> None:
        """Shows that the host is alive while a thread waits for a file: its task may not be set up yet."""
        self._send(COORDINATOR, SetUpProgress(0), None)

    def _refuse(self, sender: str, reason: str) -> None:
        """Refuses a message for a body, which has found it out of place."""
        self._interpret(Refuse(sender, reason))

    def _send(self, to: str, message: Message, payload: PayloadLike) -> None:
        """Sends a message from any thread; only the host's own reconnects."""
        self._transmit(to, message, payload)

    def _transmit(self, to: str, message: Message, payload: PayloadLike) -> bool:
        """Sends a message; returns whether the peer has it, see `Mailbox.send`.

        A peer that is gone or takes nothing is the coordinator's to find; what it misses is sent again.
        """
        try:
            return self._mailbox.send(to, message, payload)
        except UnknownPeer:
            return False
        except PeerStalled:
            self._stalled.put(to)
            self._mailbox.wake()
            return False


def _report(error: BaseException) -> Failed:
    """Returns the report of what the host's work has raised."""
    if isinstance(error, NeverEnds):
        return Failed(error.reason, error.stack, stuck=True)
    expected = isinstance(error, CannotGoOn)
    return report_of(error, final=expected, expected=expected)
