"""A member of an all-reduce over this engine's transport: arguments LABEL of its machine, or "" for TCP, and
ADDRESS, at which it listens; 127.0.0.1 if not given.

It does what a host does, and nothing else: receives messages, gives them to the machine of the exchange, and
carries out what that asks for.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from benchmarks._worker import serve
from partita.engine.protocol.events import Received, Send, Span
from partita.engine.protocol.exchange import (
    AddChunk,
    CopyChunk,
    Exchange,
    ExchangeDone,
    Group,
    Member,
    Numbers,
    Ring,
    Tree,
    create_exchange,
)
from partita.engine.protocol.messages import Peer
from partita.engine.transport import KeyPair, Payload, ZmqMailbox

Vector: TypeAlias = np.ndarray[Any, np.dtype[np.float32]]

ALGORITHMS = {"ring": Ring, "tree": Tree}


class ExchangeMember:
    """One process of the group."""

    def __init__(self, label: str, address: str = "127.0.0.1") -> None:
        keys = KeyPair.generate()
        self._label = label
        self._mailbox = ZmqMailbox(keys, endpoint=f"tcp://{address}:*", machine=label)
        self._key = keys.public
        self._exchanges = 0
        self._done: set[Exchange] = set()

    def address(self) -> list[str]:
        """Returns the endpoint and the key of this member."""
        return [self._mailbox.endpoint, self._key]

    def meet(self, rank: int, addresses: Sequence[Sequence[str]]) -> None:
        """Connects all of them."""
        self._peers = [
            Peer(f"part {n}.0", 0, endpoint, key, self._label) for n, (endpoint, key) in enumerate(addresses)
        ]
        self._rank = rank
        others = [peer for n, peer in enumerate(self._peers) if n != rank]
        self._mailbox.allow(others)
        for peer in others:
            self._mailbox.connect(peer)

    def prepare(self, algorithm: str, length: int) -> None:
        """Begins an exchange of so many float32."""
        members = tuple(Member(peer.name, 0, self._label) for peer in self._peers)
        self._exchanges += 2
        me = members[self._rank].name
        group, barrier = (Group(members, me, exchange=self._exchanges + n) for n in range(2))
        self._exchange = create_exchange(ALGORITHMS[algorithm](), group, Numbers(length))
        self._barrier = create_exchange(Tree(), barrier, Numbers(1))
        self._vectors = [np.empty(length, np.float32) for _ in range(2)]
        self._signs = [np.zeros(1, np.float32) for _ in range(2)]

    def check(self) -> float:
        """The largest error of one all-reduce, in units of the last place of the largest term."""
        length = len(self._vectors[0])
        terms = [
            np.random.default_rng(n).standard_normal(length, np.float32) for n in range(len(self._peers))
        ]
        self._vectors[self._exchange.next % 2][:] = terms[self._rank]
        found = self._all_reduce()
        self._meet_all()
        exact = np.sum(np.array(terms, np.float64), axis=0)
        return float(np.max(np.abs(found - exact))) / float(np.spacing(np.float32(np.max(np.abs(exact)))))

    def run(self, times: int) -> float:
        """Seconds of one of so many all-reduces in a row."""
        for vector in self._vectors:
            vector[:] = 0.0
        self._all_reduce()
        began = time.perf_counter()
        for _ in range(times):
            self._all_reduce()
        seconds = (time.perf_counter() - began) / times
        self._meet_all()
        return seconds

    def _all_reduce(self) -> Vector:
        return self._run(self._exchange, self._vectors)

    def _meet_all(self) -> None:
        """Serves the mailbox until all have finished: what waits for a slow one is sent in `receive` only."""
        self._run(self._barrier, self._signs)

    def _run(self, exchange: Exchange, vectors: Sequence[Vector]) -> Vector:
        number = exchange.next
        vector = vectors[number % 2]
        running = exchange is self._exchange
        span = Span(f"{'vectors' if running else 'signs'} {number % 2}", 0, len(vector))
        self._done = self._done - {exchange}
        self._carry_out(exchange, exchange.begin(number, span, time.monotonic()))
        while exchange not in self._done:
            for event in self._mailbox.receive(1.0):
                self._receive(event)
        return vector

    def _receive(self, event: Received) -> None:
        index = getattr(event.message, "exchange", 0) - self._exchanges
        if index in (0, 1):
            exchange = (self._exchange, self._barrier)[index]
            self._carry_out(exchange, exchange.receive(event, time.monotonic()))

    def _carry_out(self, exchange: Exchange, effects: Sequence[Any]) -> None:
        for effect in effects:
            match effect:
                case Send(to=to, message=message, payload=span):
                    assert span is not None
                    self._mailbox.send(to, message, self._of(span))
                case AddChunk(span=span, payload=Payload() as payload):
                    payload.add_into(self._of(span))
                    payload.release()
                case CopyChunk(span=span, payload=Payload() as payload):
                    payload.copy_into(self._of(span))
                    payload.release()
                case ExchangeDone():
                    self._done |= {exchange}
                case _:
                    raise AssertionError(effect)

    def _of(self, span: Span) -> Vector:
        kind, _, which = span.vector.partition(" ")
        vectors = self._vectors if kind == "vectors" else self._signs
        return vectors[int(which)][span.start : span.stop]


if __name__ == "__main__":
    serve(lambda: ExchangeMember(*sys.argv[1:]))
