"""What reads bytes of others in this process: decoders, the messages of a member, a stream link, a pool.

Each has `feed`, which gives it one frame or a few, and returns how many; and `check`, which asks at the end
whether what is right is still taken. Both raise what should not be.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any, Final, Protocol

import msgspec

from partita.engine.protocol import encode
from partita.engine.protocol.messages import Fetch, MalformedMessage, Peer, decode
from partita.engine.protocol.pool import messages as pool
from partita.engine.protocol.pool.registry import FromVisitor, PoolTick, Probe, Probed, RegistryMachine
from partita.engine.protocol.pool.resources import Resources
from partita.engine.transport import Counters
from partita.engine.transport.authenticator import parse_request
from partita.engine.transport.inbound import InboundConnections
from partita.engine.transport.seal import TAG_BYTES, Seal, new_key
from partita.engine.transport.stream_link import LENGTH_BYTES
from partita.engine.transport.stream_receiver import StreamReceiver
from partita.engine.transport.wire import (
    INLINE_BYTES,
    MalformedFrames,
    MessageStart,
    StreamOffer,
    decode_envelope,
)
from tests.fuzz.corpus import ENVELOPES, MESSAGES, POOL_MESSAGES, drawn, mutated

MAX_PAYLOAD: Final = 1 << 21
"""Largest payload that is accepted (bytes)."""


class Target(Protocol):
    """Something that reads frames."""

    def feed(self, random: Random) -> int:
        """Feeds one frame or a few; returns how many. Raises what must not be."""

    def check(self) -> None:
        """Raises AssertionError unless right messages are still taken."""

    def close(self) -> None:
        """Frees what it holds."""


class Decoders:
    """Every decoder: a message, or the one error that it documents."""

    def __init__(self) -> None:
        self._decoders: list[tuple[tuple[type, ...], Callable[[bytes], object], type[Exception]]] = [
            (MESSAGES, decode, MalformedMessage),
            (ENVELOPES, decode_envelope, MalformedFrames),
            (POOL_MESSAGES, pool.decode, MalformedMessage),
        ]

    def feed(self, random: Random) -> int:
        kinds, decoder, error = random.choice(self._decoders)
        data = mutated(drawn(kinds, random), random)
        with suppress(error):
            decoder(data)
        parse_request([data[n::7] for n in range(random.randrange(10))])
        return 1

    def check(self) -> None:
        assert decode(encode(Fetch(3))) == Fetch(3)

    def close(self) -> None:
        pass


class Member:
    """Groups of frames from an authorised sender, to the half of a mailbox that has no sockets."""

    def __init__(self) -> None:
        self._counters = Counters()
        self._inbound = InboundConnections(self._counters, max_payload=MAX_PAYLOAD, machine="here")
        self.delivered, self._incarnation = 0, 0
        self._replace()

    def _replace(self) -> None:
        """Authorises the next incarnation: one that has sent the highest number can send nothing more."""
        self._incarnation += 1
        self._key = f"{self._incarnation:040d}"
        self._inbound.replace([Peer("part 0.0", self._incarnation, "tcp://127.0.0.1:1", self._key, "here")])

    def feed(self, random: Random) -> int:
        group = frames_of_member(random)
        self.delivered += len(self._inbound.accept(self._key, [memoryview(one) for one in group]))
        self._inbound.poll_link(self._key)
        if random.random() < 0.05:
            self._replace()
        return len(group)

    def check(self) -> None:
        self._replace()
        (received,) = self._inbound.accept(self._key, [memoryview(encode_start(0))])
        assert received.message == Fetch(3) and self.delivered > 0

    def close(self) -> None:
        self._inbound.replace([])


def frames_of_member(random: Random) -> list[bytes]:
    """Returns the frames of one group, as a member may send them."""
    if random.random() < 0.5:
        message = mutated(drawn(MESSAGES, random), random)
        n_bytes = random.choice((None, 0, 1, 5, INLINE_BYTES, INLINE_BYTES + 1, MAX_PAYLOAD, MAX_PAYLOAD + 1))
        payload = random.choice((None, None, bytes(n_bytes or 0)[: INLINE_BYTES + 1]))
        number = random.randrange(4) + (random.randrange(2000) << 32)
        start = MessageStart(number, n_bytes, message, random.choice((None, None, 0, 64)), payload)
        first = encode_start_of(start)
    else:
        first = drawn(ENVELOPES, random)
    chunk = random.choice((b"", b"x", bytes(INLINE_BYTES + 1), random.randbytes(40)))
    count = random.choice((1, 1, 2, 2, 3))
    return [mutated(first, random), *([chunk] * (count - 1))]


def encode_start(number: int) -> bytes:
    """Returns the frame of a message without a payload."""
    return encode_start_of(MessageStart(number, None, encode(Fetch(3))))


def encode_start_of(start: MessageStart) -> bytes:
    return msgspec.msgpack.encode(start)


class Stream:
    """Records of a stream link whose sender has the right key, and says the wrong things with it."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._port = self._listener.getsockname()[1]
        self.taken = 0
        self._open()

    def _open(self) -> None:
        self._key = new_key()
        offer = StreamOffer(b"t" * 16, self._port, self._key, False, 0)
        self._receiver = StreamReceiver(
            "127.0.0.1", offer, max_payload=MAX_PAYLOAD, on_close=lambda channel: None
        )
        self._sender, _ = self._listener.accept()
        self._receiver.arrived()
        assert self._sender.recv(16) == b"t" * 16
        self._sender.setblocking(False)
        self._seal = Seal(self._key)

    def feed(self, random: Random) -> int:
        self._send(frames_of_member(random)[0], random)
        for _ in range(3):
            for _header, landed in self._receiver.arrived():
                self.taken += 1
                if landed is not None:
                    self._receiver.undelivered_bytes -= landed.view.nbytes
                    landed.release()
        if not self._receiver.is_alive or random.random() < 0.02:
            self._receiver.close()
            self._sender.close()
            self._open()
        return 1

    def _send(self, header: bytes, random: Random) -> None:
        sealed = bytearray(len(header) + TAG_BYTES)
        self._seal.close(header, memoryview(sealed))
        n = len(sealed) if random.random() < 0.9 else random.choice((0, TAG_BYTES, 2**31, 2**32 - 1))
        record = n.to_bytes(LENGTH_BYTES, "little") + bytes(sealed)
        if random.random() < 0.2:
            record = mutated(record, random)
        with suppress(BlockingIOError, ConnectionError):
            self._sender.send(record)

    def check(self) -> None:
        self._receiver.close()
        self._sender.close()
        self._open()
        header = encode_start(0)
        sealed = bytearray(len(header) + TAG_BYTES)
        self._seal.close(header, memoryview(sealed))
        self._sender.send(len(sealed).to_bytes(LENGTH_BYTES, "little") + sealed)
        found: list[Any] = []
        for _ in range(100_000):
            found += self._receiver.arrived()
            if found:
                break
        assert [one for one, _ in found] == [header] and self.taken > 0

    def close(self) -> None:
        self._receiver.close()
        self._sender.close()
        self._listener.close()


class Registry:
    """Messages of authorised workers and clients to the registry of a pool."""

    MEMBERS: Final = (("w0", "worker"), ("w1", "worker"), ("c0", "client"), ("c1", "client"))

    def __init__(self) -> None:
        self._versions = {"partita": "1"}
        self._machine = RegistryMachine(self._versions, identity="0")
        self._now = 0.0

    def feed(self, random: Random) -> int:
        self._now += random.choice((0.0, 0.01, 0.3))
        data = mutated(drawn(POOL_MESSAGES, random), random)
        with suppress(MalformedMessage):
            member, role = random.choice(self.MEMBERS)
            message = pool.decode(data)
            if hasattr(message, "versions") and random.random() < 0.8:
                message = type(message)(
                    **{f: getattr(message, f) for f in message.__struct_fields__}
                    | {"versions": self._versions}
                )
            self._give(FromVisitor(random.randbytes(4), member, role, message), random)
        if random.random() < 0.1:
            self._give(PoolTick(), random)
        self._machine.validate()
        return 1

    def _give(self, event: object, random: Random) -> None:
        for effect in self._machine.receive(event, self._now):
            if isinstance(effect, Probe) and random.random() < 0.9:
                self._give(Probed(effect.session, random.choice(("", "", "no way"))), random)

    def check(self) -> None:
        for _ in range(200):  # a longer pause would be the registry's own, for which no worker is blamed
            self._now += 0.25
            self._machine.receive(PoolTick(), self._now)
        assert not self._machine.workers
        join = pool.Join(
            session="s", name="w", endpoint="tcp://127.0.0.1:1", versions=self._versions, machine="m",
            resources=Resources(cpu=1), runs=(),
        )  # fmt: skip
        self._machine.receive(FromVisitor(b"r", "w0", "worker", join), self._now)
        self._machine.receive(Probed("s", ""), self._now)
        assert len(self._machine.workers) == 1

    def close(self) -> None:
        pass
