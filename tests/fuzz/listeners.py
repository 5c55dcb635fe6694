"""What listens: a mailbox, the door of a pool, the rendezvous of a machine. To strangers and to members."""

from __future__ import annotations

import os
import select
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from random import Random
from typing import Final

import zmq

from partita.engine.launch.pool.server import PoolServer
from partita.engine.protocol.conduct import Conduct, Verdict
from partita.engine.protocol.messages import Fetch, Peer
from partita.engine.protocol.pool import messages as pool
from partita.engine.transport import KeyPair, ZmqMailbox
from partita.engine.transport.keyring import Keyring
from partita.engine.transport.rendezvous import Rendezvous, connect
from partita.engine.transport.sockets import SocketFactory, stream_connection
from partita.engine.transport.stream_sender import StreamSender
from partita.engine.transport.visit import Visit
from tests.fuzz.corpus import POOL_MESSAGES, drawn, mutated
from tests.fuzz.readers import MAX_PAYLOAD, encode_start, frames_of_member

DEADLINE_S: Final = 30.0
"""Seconds within which an honest peer is served, whatever others send."""

_STANDING: Final = 50  # connections of strangers at a time

# What a client says first (ZMTP 3.1, RFC 37; CurveZMQ, RFC 26), and the begin of a HELLO.
_GREETING: Final = b"\xff" + bytes(8) + b"\x7f\x03\x01CURVE" + bytes(15) + b"\x00" + bytes(31)
_HELLO: Final = b"\x04\xc8\x05HELLO\x01\x00" + bytes(72) + bytes(range(120))
_READY: Final = b"\x04\x26\x05READY\x0bSocket-Type\x00\x00\x00\x04PUSH\x08Identity\x00\x00\x00\x00"
_SAYS: Final = (_GREETING, _GREETING[:12], _HELLO, _READY, b"GET / HTTP/1.1\r\n\r\n", b"\x02" + bytes(8))


def _until(done: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not done():
        assert time.monotonic() < deadline, f"{what} within {DEADLINE_S:.0f} s"


class _Crowd:
    """Connections of strangers, the oldest of which end."""

    def __init__(self, port: int) -> None:
        self._port, self._standing = port, list[socket.socket]()

    def feed(self, random: Random) -> int:
        if len(self._standing) >= _STANDING:
            self._standing.pop(random.randrange(_STANDING)).close()
        with suppress(OSError):
            self._standing.append(stream_connection("127.0.0.1", self._port))
        sent = 0
        if random.random() < 0.7:
            sent += self._say(self._standing[-1], _GREETING)
        for _ in range(random.randrange(1, 12)):
            data = mutated(random.choice((*_SAYS, random.randbytes(60))), random)
            sent += self._say(random.choice(self._standing), data)
        return sent

    @staticmethod
    def _say(one: socket.socket, data: bytes) -> int:
        with suppress(OSError):
            one.send(data)
            return 1
        return 0

    def close(self) -> None:
        for one in self._standing:
            one.close()


class _Mailbox:
    """A mailbox with an honest peer."""

    def __init__(self) -> None:
        self.keys = KeyPair.generate()
        self.box = ZmqMailbox(KeyPair.generate(), max_payload=MAX_PAYLOAD)
        self.honest = ZmqMailbox(KeyPair.generate())
        self.peer = Peer("honest", 0, self.honest.endpoint, self.honest.public_key)
        self.own = Peer("target", 0, self.box.endpoint, self.box.public_key)
        self.honest.allow([self.own])
        self.honest.connect(self.own)
        self.box.allow([self.peer])
        self.received = 0

    def receive(self) -> None:
        self.received += len(self.box.receive(0.0))

    def check(self) -> None:
        """An honest message arrives."""
        self.honest.send("target", Fetch(7), bytes(20_000))
        self.honest.receive(0.0)

        def arrived() -> bool:
            self.honest.receive(0.0)
            return any(one.sender == "honest" and one.message == Fetch(7) for one in self.box.receive(0.01))

        _until(arrived, "an honest message has to arrive")

    def close(self) -> None:
        self.box.close()
        self.honest.close()


class StrangersAtMailbox(_Mailbox):
    """Raw connections to a mailbox, before the handshake and in it."""

    def __init__(self) -> None:
        super().__init__()
        self.box._guard._admission.is_supported = False  # all are to be let in here
        self._crowd = _Crowd(int(self.box.endpoint.rpartition(":")[2]))

    def feed(self, random: Random) -> int:
        sent = self._crowd.feed(random)
        self.receive()
        return sent

    def check(self) -> None:
        assert self.received == 0
        super().check()

    def close(self) -> None:
        self._crowd.close()
        super().close()


class MemberAtMailbox(_Mailbox):
    """An authorised sender, after the handshake, that says anything."""

    def __init__(self) -> None:
        super().__init__()
        self._incarnation, self._left = 0, 0
        self._factory: SocketFactory | None = None

    def _replace(self) -> None:
        """Another incarnation: one that has sent the highest number can send nothing more."""
        if self._factory is not None:
            self._factory.close()
        keys = KeyPair.generate()
        self._factory = SocketFactory(keys)
        self._incarnation += 1
        member = Peer("part 0.0", self._incarnation, "tcp://127.0.0.1:1", keys.public)
        self.box.allow([self.peer, member])
        self._socket = self._factory.outgoing(self.own)

    def feed(self, random: Random) -> int:
        group = frames_of_member(random)
        if self._left == 0:
            self._left = 400
            self._replace()
            group = [encode_start(0)]  # one that is right, or what is drawn may never be delivered
        self._left -= 1
        until = time.monotonic() + DEADLINE_S
        while True:
            try:
                self._socket.send_multipart(group, zmq.NOBLOCK)
                break
            except zmq.Again:
                assert time.monotonic() < until, "the mailbox reads no more"
                self.received += len(self.box.receive(0.001))
        self.receive()
        return len(group)

    def check(self) -> None:
        assert self.received > 0 and self.box.counters.malformed > 0
        super().check()

    def close(self) -> None:
        if self._factory is not None:
            self._factory.close()
        super().close()


class StrangersAtStream:
    """Raw connections to the socket on which the sender of a stream link waits for its peer."""

    def __init__(self) -> None:
        self._open()

    def _open(self) -> None:
        self._sender = StreamSender("127.0.0.1", clear=False)
        self._now = 0.0
        offer = self._sender.offer(0, self._now)
        assert offer is not None
        self._offer = offer
        self._crowd = _Crowd(offer.port)

    def feed(self, random: Random) -> int:
        sent = self._crowd.feed(random)
        self._now += 0.01
        self._sender.serve(self._now)
        assert not self._sender.is_open
        if not self._sender.watched:  # it has been beset for too long, and gives up until later
            self.close()
            self._open()
        return sent

    def check(self) -> None:
        self.close()
        self._open()
        with stream_connection("127.0.0.1", self._offer.port) as peer:
            _until(lambda: select.select([], [peer], [], 0.1)[1], "a connection")
            peer.send(self._offer.token)
            _until(lambda: self._sender.serve(self._now) or self._sender.is_open, "the peer with the token")

    def close(self) -> None:
        self._crowd.close()
        self._sender.close()


class _Tolerant(Conduct):
    """Cuts off nobody, or little would come through."""

    def refused(self, sender: str, now: float) -> Verdict:
        return "again"

    def too_many(self, sender: str, kind: str, now: float) -> None:
        return None


class VisitorsAtPool:
    """Strangers, workers and clients at the door of a pool."""

    def __init__(self) -> None:
        self._closing = ExitStack()
        folder = self._closing.enter_context(tempfile.TemporaryDirectory())
        ring = Keyring(Path(folder) / "keys")
        ring.new("pool")
        self._pairs = [ring.new("worker"), ring.new("client")]
        ring.authorise("worker", self._pairs[0].public, "worker")
        ring.authorise("client", self._pairs[1].public, "client")
        self._lines: list[str] = []
        self._failures: list[BaseException] = []
        self._server = PoolServer(ring, "tcp://127.0.0.1:*", log=self._lines.append)
        self._server._door._guard._admission.is_supported = False
        self._server._conduct = _Tolerant()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        self._peer = Peer("the pool", 0, self._server.endpoint, self._server.public_key)
        self._visits = [self._closing.enter_context(Visit(pair, self._peer)) for pair in self._pairs]
        self._crowd = _Crowd(int(self._server.endpoint.rpartition(":")[2]))

    def _serve(self) -> None:
        try:
            self._server.serve()
        except BaseException as error:  # noqa: BLE001 - shown by check
            self._failures.append(error)

    def feed(self, random: Random) -> int:
        assert not self._failures, self._failures
        for visit in self._visits:
            visit.send(mutated(drawn(POOL_MESSAGES, random), random))
            visit.receive()
        del self._lines[:]
        return len(self._visits) + (self._crowd.feed(random) if random.random() < 0.1 else 0)

    def check(self) -> None:
        asked = pool.encode(pool.Inspect())
        with Visit(self._pairs[1], self._peer) as honest:
            answers: list[bytes] = []

            def answered() -> bool:
                assert not self._failures, self._failures
                honest.send(asked)
                answers.extend(honest.receive())
                return bool(answers)

            _until(answered, "an honest client has to be answered")
            assert isinstance(pool.decode(answers[0]), pool.Status)

    def close(self) -> None:
        self._crowd.close()
        self._server.stop()
        self._thread.join()
        self._server.close()
        self._closing.close()


class StrangersAtRendezvous:
    """Processes of this user that know the address of a host, and not its tokens."""

    def __init__(self) -> None:
        self._key = KeyPair.generate().public
        self._rendezvous = Rendezvous(self._key)
        self._passed = os.open("/dev/null", os.O_RDONLY)
        self._standing: list[socket.socket] = []
        self._before = len(os.listdir("/proc/self/fd"))

    def feed(self, random: Random) -> int:
        while len(self._standing) > _STANDING:
            self._standing.pop(random.randrange(_STANDING)).close()
        token = random.choice((b"", b"x", bytes(16), random.randbytes(16), random.randbytes(17), bytes(5000)))
        one = connect(self._key, token, self._passed)
        if one is not None:
            self._standing.append(one)
        self._rendezvous.take(random.randbytes(16))
        if self._standing:
            with suppress(OSError):
                random.choice(self._standing).send(random.randbytes(20))
        return 2

    def check(self) -> None:
        token = b"right" + bytes(11)
        mine = connect(self._key, token, self._passed)
        found = self._rendezvous.take(token)
        assert mine is not None and found is not None
        found.close()
        mine.close()
        while self._standing:
            self._standing.pop().close()
        pending = 2 * len(self._rendezvous._pending)
        assert len(os.listdir("/proc/self/fd")) <= self._before + pending + 4

    def close(self) -> None:
        self._rendezvous.close()
        os.close(self._passed)
