"""Keys of one run: a worker gets in as soon as it has been introduced, and nobody else does."""

from __future__ import annotations

import time

import zmq

from partita.engine.launch.pool.server import PoolServer, PoolThread
from partita.engine.launch.ray.introduced import IntroducedKeys
from partita.engine.protocol.messages import Peer
from partita.engine.protocol.pool import messages as m
from partita.engine.transport.keys import KeyPair
from partita.engine.transport.visit import Visit


def answer_to(visit: Visit) -> m.PoolMessage:
    """The answer to a question that this role may not ask."""
    until, asked = time.monotonic() + 20.0, False
    while time.monotonic() < until:
        asked = asked or visit.send(m.encode(m.Inspect()))
        zmq.select(list(visit.sockets), [], [], 0.05)
        for found in visit.receive():
            return m.decode(found)
        assert visit.trouble is None, visit.trouble
    raise AssertionError("no answer")


def test_a_worker_gets_in_as_soon_as_it_is_introduced() -> None:
    said: list[str] = []
    keys, worker, stranger = IntroducedKeys(), KeyPair.generate(), KeyPair.generate()
    server = PoolServer(keys, "tcp://127.0.0.1:*", log=said.append)
    thread = PoolThread(server)
    try:
        peer = Peer("the pool", 0, server.endpoint, keys.public_key)
        keys.introduce("bundle 0", worker.public)
        with Visit(worker, peer) as visit:
            assert "authorised as a worker" in answer_to(visit).reason  # type: ignore[union-attr]
        assert said == []
        with Visit(stranger, peer) as visit:
            until = time.monotonic() + 20.0
            while not said and time.monotonic() < until:
                zmq.select(list(visit.sockets), [], [], 0.05)
                assert visit.receive() == []
    finally:
        thread.close()
    assert stranger.public in said[0] and said[0].endswith("is not authorised; it is no actor of this run")


def test_another_actor_of_a_bundle_takes_the_place_of_the_first() -> None:
    keys, first, second = IntroducedKeys(), KeyPair.generate(), KeyPair.generate()
    before = keys.stamp()
    keys.introduce("bundle 0", first.public)
    keys.introduce("bundle 1", second.public)
    keys.introduce("bundle 0", second.public)
    assert keys.stamp() != before
    assert [(one.role, one.name, one.public_key) for one in keys.authorised()] == [
        ("worker", "bundle 0", second.public),
        ("worker", "bundle 1", second.public),
    ]
