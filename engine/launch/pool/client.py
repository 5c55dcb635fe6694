"""The body of a pool's client: a thread that keeps up the connections of one run to registry and workers."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Final

import zmq

from partita.engine.protocol.messages import MalformedMessage, Peer
from partita.engine.protocol.pool import messages as m
from partita.engine.protocol.pool.client import ClientMachine
from partita.engine.protocol.pool.client_events import (
    Began,
    CannotRun,
    ClientEffect,
    Connect,
    Cut,
    Disconnect,
    Ended,
    FromPool,
    FromWorker,
    NotSent,
    SendToPool,
    SendToWorker,
)
from partita.engine.protocol.pool.registry_events import Log, PoolTick
from partita.engine.transport.addresses import described
from partita.engine.transport.keys import KeyPair
from partita.engine.transport.visit import Trouble, Visit

TICK_S: Final = 0.1
TROUBLE_S: Final = 4.0
"""Seconds after which a run gives up a pool or a worker to which there never was a connection."""

_CLOSED_S: Final = 2.0  # for the workers' answers at the end


class PoolClient:
    """The connections of one run. Its methods may be called from any thread."""

    def __init__(
        self,
        machine: ClientMachine,
        pool: Peer,
        keys: KeyPair,
        own: KeyPair,
        *,
        address: str,
        log: Callable[[str], object],
    ) -> None:
        """Begins to connect.

        Args:
            machine: makes the decisions.
            pool: the registry's door.
            keys: the pair by which the pool knows its client.
            own: a pair for this run, which the pool tells its workers.
            address: of this machine, for messages.
            log: shows a line.
        """
        self._machine, self._own, self._address, self._log = machine, own, address, log
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._began: list[tuple[str, int]] = []
        self._ended: list[tuple[str, int, str]] = []
        self._failure: str | None = None
        self._closing = False
        self._commands: SimpleQueue[Callable[[], Sequence[ClientEffect]]] = SimpleQueue()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._pool = Visit(keys, pool)
        self._workers: dict[str, Visit] = {}
        self._connected: set[str] = set()  # that have answered; "" is the pool
        self._trouble_since: dict[str, float] = {}
        self._unanswered: set[str] = set()  # at the end: workers that have not said that all has ended
        self._thread = threading.Thread(target=self._run, name="pool client", daemon=True)
        self._thread.start()

    # For the launcher.

    def wait_until_placed(self) -> None:
        """Waits until every host of the run has a place. Raises RuntimeError with the reason if not."""
        with self._changed:
            self._changed.wait_for(lambda: self._machine.is_placed or self._failure is not None)
            if self._failure is not None:
                raise RuntimeError(self._failure)

    def machine_of(self, name: str) -> str:
        """Returns the label of the machine on which a host has its place; "" if it has none."""
        with self._lock:
            contact = self._machine.seats.get(name)
        return "" if contact is None else contact.machine

    def places(self) -> dict[str, str]:
        """Returns the name of the worker at which each host has its place."""
        with self._lock:
            return {host: contact.name for host, contact in self._machine.seats.items()}

    def want(self, name: str, incarnation: int, bootstrap: bytes) -> None:
        """Asks the worker of a host's place to start it."""
        self._command(lambda: self._machine.want(name, incarnation, bootstrap))

    def end(self, name: str) -> None:
        """Asks the worker of a host's place to end it."""
        self._command(lambda: self._machine.end(name))

    def began(self) -> list[tuple[str, int]]:
        """Returns the hosts whose processes began to run since the last call."""
        with self._lock:
            found, self._began = self._began, []
            return found

    def ended(self) -> list[tuple[str, int, str]]:
        """Returns the hosts that have ended since the last call, with reasons.

        Raises:
            RuntimeError: the run cannot go on, for the reason in it.
        """
        with self._lock:
            found, self._ended = self._ended, []
            if self._failure is not None:
                raise RuntimeError(self._failure)
            return found

    def wait_for_ends(self, running: int, timeout_s: float) -> None:
        """Waits until so many hosts have ended by themselves, or for so long."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._ended) >= running, timeout_s)

    def close(self) -> None:
        """Ends all hosts of the run, and every connection."""
        self._command(self._close)
        self._thread.join()
        os.close(self._wake_fd)

    def _command(self, command: Callable[[], Sequence[ClientEffect]]) -> None:
        self._commands.put(command)
        os.eventfd_write(self._wake_fd, 1)

    # The thread.

    def _run(self) -> None:
        ticked_at = until = float("-inf")
        try:
            while not self._closing or (self._unanswered and time.monotonic() < until):
                if not self._closing:
                    until = time.monotonic() + _CLOSED_S
                self._poll()
                while not self._commands.empty():
                    self._give(self._commands.get())
                for answer in self._pool.receive():
                    self._receive("", answer)
                for session, visit in list(self._workers.items()):
                    for answer in visit.receive():
                        self._receive(session, answer)
                now = time.monotonic()
                if now - ticked_at >= TICK_S:
                    ticked_at = now
                    self._diagnose(now)
                    self._event(PoolTick())
        except BaseException as error:  # noqa: BLE001 - the launcher's thread raises it
            self._fail(f"the connection to the pool failed: {error!r}")
        finally:
            self._pool.close()
            for visit in self._workers.values():
                visit.close()

    def _poll(self) -> None:
        poller = zmq.Poller()
        for visit in (self._pool, *self._workers.values()):
            for socket in visit.sockets:
                poller.register(socket, zmq.POLLIN)
        poller.register(self._wake_fd, zmq.POLLIN)
        if self._wake_fd in dict(poller.poll(int(TICK_S * 1000))):
            os.eventfd_read(self._wake_fd)

    def _receive(self, session: str, data: bytes) -> None:
        self._connected.add(session)
        try:
            message = m.decode(data)
        except MalformedMessage as error:
            self._log(f"dropped an answer: {error}")
            return
        if self._closing and isinstance(message, m.HostStates) and not message.hosts:
            self._unanswered.discard(session)
        self._event(FromWorker(session, message) if session else FromPool(message))

    def _event(self, event: object) -> None:
        self._give(lambda: self._machine.receive(event, time.monotonic()))

    def _give(self, decide: Callable[[], Sequence[ClientEffect]]) -> None:
        with self._lock:
            effects = decide()
            self._changed.notify_all()
        for effect in effects:
            self._carry_out(effect)

    def _carry_out(self, effect: ClientEffect) -> None:
        match effect:
            case SendToPool(message=message):
                self._send("", self._pool, message)
            case SendToWorker(session=session, message=message):
                if session in self._workers:
                    self._send(session, self._workers[session], message)
            case Connect(worker=worker):
                peer = Peer(f"worker '{worker.name}'", 0, worker.endpoint, worker.session, worker.machine)
                self._workers[worker.session] = Visit(self._own, peer)
            case Disconnect(session=session):
                self._workers.pop(session).close()
                self._trouble_since.pop(session, None)
            case Began(name=name, incarnation=incarnation):
                with self._lock:
                    self._began.append((name, incarnation))
            case Ended(name=name, incarnation=incarnation, reason=reason):
                with self._changed:
                    self._ended.append((name, incarnation, reason))
                    self._changed.notify_all()
            case CannotRun(reason=reason):
                self._fail(reason)
            case Log(text=text):
                self._log(text)

    def _send(self, session: str, visit: Visit, message: m.PoolMessage) -> None:
        if not visit.send(m.encode(message)):
            self._event(NotSent(session))

    def _close(self) -> Sequence[ClientEffect]:
        self._closing = True
        self._unanswered = self._connected & self._workers.keys()
        return self._machine.close()

    def _fail(self, reason: str) -> None:
        with self._changed:
            self._failure = self._failure or reason
            self._changed.notify_all()

    def _diagnose(self, now: float) -> None:
        """Gives up a pool or a worker that never answered; reports a worker whose connection has ended."""
        for session, visit in (("", self._pool), *self._workers.items()):
            if visit.trouble is None or session in self._connected:
                self._trouble_since.pop(session, None)
                if visit.trouble is not None:
                    self._event(Cut(session))
            elif now - self._trouble_since.setdefault(session, now) >= TROUBLE_S:
                self._fail(worded(visit, visit.trouble, self._address))


def worded(visit: Visit, trouble: Trouble, address: str) -> str:
    """Words why a client has no connection to a pool or a worker, and what to do."""
    who = f"{visit.peer.name} at {visit.peer.endpoint}"
    match trouble:
        case Trouble.REFUSED:
            return (
                f"{who} refuses this run's key, which is not authorised there; copy client.pub there and "
                "run `partita keys authorise client.pub --as client`"
            )
        case Trouble.OTHER_KEY:
            return (
                f"{who} has another key than {visit.peer.public_key}, which is trusted here; copy "
                "pool.pub from there and run `partita keys authorise pool.pub --as pool` here"
            )
        case Trouble.UNREACHABLE:
            why = visit.reason() or "the connection ended"
            return f"{who} cannot be reached from {described(address)}: {why}"
