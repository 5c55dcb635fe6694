"""Strangers at the ports of a running training: they get nowhere, and stop nothing."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import psutil
import pytest
import zmq

from partita.engine import SGD, Downpour, Interrupted, train
from partita.engine.launch import ProcessLauncher
from partita.engine.protocol.messages import Failed, Push, Stop
from partita.engine.transport import KeyPair
from partita.engine.transport.sockets import stream_connection
from partita.engine.transport.wire import frames
from partita.partitioner import Cluster, partition
from tests.faults import toy
from tests.faults.helpers import DEADLINE_S, Witness, hosts_of

_TURNED_AWAY = (
    zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)

STANDING = 200


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    made: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield made
    made.destroy(linger=0)


def port_of(process: psutil.Process) -> int:
    (listening,) = [c for c in process.net_connections("tcp") if c.status == psutil.CONN_LISTEN]
    return int(listening.laddr.port)


class Strangers:
    """Knock at ports in every way, each on a thread of its own, until they have been turned away."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], ports: list[int], server_key: str, *, crowd: int
    ) -> None:
        self._context, self._ports, self._server_key, self._crowd = context, ports, server_key, crowd
        self.failures: list[BaseException] = []
        knocks: list[Callable[[], None]] = [self._come_in_crowds]
        for port in ports:
            for mechanism in ("NULL", "PLAIN", "unknown key"):
                knocks.append(partial(self._knock_by_zeromq, port, mechanism))
            for data in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 70):
                knocks.append(partial(self._knock, port, data))
        self._threads = [threading.Thread(target=self._try, args=(knock,)) for knock in knocks]
        for thread in self._threads:
            thread.start()

    @property
    def are_done(self) -> bool:
        return not any(thread.is_alive() for thread in self._threads)

    def join(self) -> None:
        for thread in self._threads:
            thread.join(10 * DEADLINE_S)
            assert not thread.is_alive()
        assert not self.failures, self.failures

    def _try(self, knock: Callable[[], None]) -> None:
        try:
            knock()
        except BaseException as error:  # noqa: BLE001 - shown by join
            self.failures.append(error)

    @staticmethod
    def _knock(port: int, data: bytes) -> None:
        with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as raw:
            raw.sendall(data)
            with contextlib.suppress(ConnectionError):
                while raw.recv(4096):  # a greeting at most, and the end of the connection
                    pass

    def _come_in_crowds(self) -> None:
        """Raw connections, `STANDING` at a time, which say nothing, too little, or nonsense."""
        greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00CURVE" + bytes(48)
        says = b"", greeting[:10], greeting, greeting + bytes(200), b"\x00" * 64, os.urandom(300)
        standing: deque[socket.socket] = deque()
        try:
            for n in range(self._crowd):
                port = self._ports[n % len(self._ports)]
                with contextlib.suppress(OSError):
                    standing.append(stream_connection("127.0.0.1", port))
                    if n % 10 == 0:  # or none of them says anything before the next one comes
                        _await_room(standing)
                    standing[-1].send(says[n // len(self._ports) % len(says)])
                if len(standing) > STANDING:
                    standing.popleft().close()
        finally:
            for one in standing:
                one.close()

    def _knock_by_zeromq(self, port: int, mechanism: str) -> None:
        push = getattr(self._context, "socket")(zmq.PUSH)  # noqa: B009 (elsewhere it is searched for as text)
        push.linger = 0
        if mechanism == "PLAIN":
            push.plain_username, push.plain_password = b"coordinator", b"coordinator"
        elif mechanism == "unknown key":
            keys = KeyPair.generate()
            push.curve_publickey, push.curve_secretkey = keys.public.encode(), keys.secret.encode()
            push.curve_serverkey = self._server_key.encode()
        monitor = push.get_monitor_socket(_TURNED_AWAY)
        push.connect(f"tcp://127.0.0.1:{port}")
        with contextlib.suppress(zmq.Again):  # turned away already
            for message in (Stop(), Failed("nothing", ""), Push(0, 0, 0, 0)):
                for envelope, _ in frames(0, message, None):
                    push.send(envelope, zmq.NOBLOCK)
        turned_away = monitor.poll(DEADLINE_S * 1000)
        push.disable_monitor()
        monitor.close(linger=0)
        push.close(linger=0)
        assert turned_away, f"nobody turned {mechanism} away"


def _await_room(standing: Iterable[socket.socket]) -> None:
    """Waits up to 10 ms until one can be written to; `select` would take no descriptor above 1,023."""
    poll = select.poll()
    for one in standing:
        poll.register(one, select.POLLOUT)
    poll.poll(10)


@pytest.mark.parametrize(
    "crowd", [120, pytest.param(24_000, marks=[pytest.mark.slow, pytest.mark.timeout(600)])]
)
def test_strangers_get_nowhere_and_stop_nothing(
    witness: Witness, monkeypatch: pytest.MonkeyPatch, context: zmq.Context[zmq.Socket[bytes]], crowd: int
) -> None:
    launchers: list[ProcessLauncher] = []
    strangers: list[Strangers] = []

    class Watched(ProcessLauncher):
        def __init__(self, **arguments: Any) -> None:
            super().__init__(**arguments)
            launchers.append(self)

    monkeypatch.setattr(sys.modules["partita.engine.run.train"], "ProcessLauncher", Watched)

    def knock() -> None:
        mailbox = launchers[0].mailbox
        hosts = hosts_of(os.getpid())
        ports = [
            int(mailbox.endpoint.rsplit(":", 1)[1]),
            *(port_of(hosts[n]) for n in ("shard 0", "part 0.1")),
        ]
        strangers.append(Strangers(context, ports, mailbox.public_key, crowd=crowd))

    witness.when(lambda progress: progress.step > 1, knock)
    witness.when(lambda progress: strangers[0].are_done, lambda: None)
    # The report after that shows that the run goes on.
    witness.when(lambda progress: True, lambda: signal.raise_signal(signal.SIGINT))
    plan = partition(toy.network(), Cluster.local(machines=2), batch=8, strategy="balanced")
    with pytest.raises(Interrupted) as stopped:
        train(plan, toy.data(), driver=Downpour(optimizer=SGD(0.05)), epochs=100_000)
    strangers[0].join()
    assert stopped.value.run.steps[0] > 1 and stopped.value.run.lost_pushes == 0
    counters = launchers[0].mailbox.counters
    assert counters.refused_handshakes >= 1
    assert counters.refused_messages == counters.malformed == 0
    assert {sender for sender, _ in counters.received} == {"part 0.0", "part 0.1", "shard 0"}
    assert not any(word in text for text in witness.texts for word in ("ended by", "exited", "failed"))
