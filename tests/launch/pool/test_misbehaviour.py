"""Members of a pool that misuse their connections are named and cut off; others are answered."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from partita.engine.launch.pool.server import PoolServer, PoolThread
from partita.engine.protocol.messages import Peer
from partita.engine.protocol.pool import messages as m
from partita.engine.transport.keyring import Keyring
from partita.engine.transport.visit import Visit

DEADLINE_S = 30.0


class Pool:
    def __init__(self, folder: Path) -> None:
        ring = Keyring(folder / "keys")
        ring.new("pool")
        self.client = ring.new("client")
        ring.authorise("client", self.client.public, "client")
        self.said: list[str] = []
        self.thread = PoolThread(PoolServer(ring, "tcp://127.0.0.1:*", log=self.said.append))
        server = self.thread.server
        self.peer = Peer("the pool", 0, server.endpoint, server.public_key)

    def until_cut_off(self, data: bytes) -> str:
        """A client repeats a message until the pool has had enough; returns what the pool says."""
        deadline = time.monotonic() + DEADLINE_S
        with Visit(self.client, self.peer) as odd:
            while not (found := [line for line in self.said if "cut off" in line]):
                assert time.monotonic() < deadline, self.said
                odd.send(data)
                odd.receive()
        return found[0]

    def answers(self) -> bool:
        deadline = time.monotonic() + DEADLINE_S
        with Visit(self.client, self.peer) as honest:
            while time.monotonic() < deadline:
                honest.send(m.encode(m.Inspect()))
                if any(isinstance(m.decode(one), m.Status) for one in honest.receive()):
                    return True
        return False


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    made = Pool(tmp_path)
    yield made
    made.thread.close()


def test_who_sends_nonsense_is_cut_off(pool: Pool) -> None:
    line = pool.until_cut_off(b"\xc1 nonsense")
    assert line.startswith(f"cut off a connection of the client client {pool.client.public[:6]}: ")
    assert pool.answers()
    pool.until_cut_off(b"\xc1 nonsense")
    assert len([line for line in pool.said if "cut off" in line]) == 1, "once in a while"


def test_a_flood_is_cut_off(pool: Pool) -> None:
    assert "a flood, of which a request is message 4," in pool.until_cut_off(m.encode(m.Inspect()))
    assert pool.answers()
