"""A member of an all-reduce over this engine's transport: argument LABEL of its machine, or "" for TCP.

It does what a host does, and nothing else: receives messages, gives them to the machine of the exchange, and
carries out what that asks for.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

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

ALGORITHMS = {"ring": Ring, "tree": Tree}


class ExchangeMember:
    """One process of the group."""

    def __init__(self, label: str) -> None:
        keys = KeyPair.generate()
        self._label = label
        self._mailbox = ZmqMailbox(keys, machine=label)
        self._key = keys.public
        self._exchanges = 0

    def address(self) -> list[str]:
        """Where the others reach this one."""
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
        self._exchanges += 1
        group = Group(members, members[self._rank].name, exchange=self._exchanges)
        self._exchange: Exchange = create_exchange(ALGORITHMS[algorithm](), group, Numbers(length))
        self._vectors = [np.empty(length, np.float32) for _ in range(2)]

    def check(self) -> float:
        """The largest error of one all-reduce, in units of the last place of the largest term."""
        length = len(self._vectors[0])
        terms = [
            np.random.default_rng(n).standard_normal(length, np.float32) for n in range(len(self._peers))
        ]
        self._vectors[self._exchange.next % 2][:] = terms[self._rank]
        found = self._all_reduce()
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
        return (time.perf_counter() - began) / times

    def _all_reduce(self) -> np.ndarray[Any, np.dtype[np.float32]]:
        number = self._exchange.next
        vector = self._vectors[number % 2]
        now = time.monotonic()
        done = self._carry_out(self._exchange.begin(number, Span(str(number % 2), 0, len(vector)), now))
        while not done:
            for event in self._mailbox.receive(1.0):
                done |= self._receive(event)
        return vector

    def _receive(self, event: Received) -> bool:
        if getattr(event.message, "exchange", 0) != self._exchanges:
            return False
        return self._carry_out(self._exchange.receive(event, time.monotonic()))

    def _carry_out(self, effects: Sequence[Any]) -> bool:
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
                    return True
                case _:
                    raise AssertionError(effect)
        return False

    def _of(self, span: Span) -> np.ndarray[Any, np.dtype[np.float32]]:
        return self._vectors[int(span.vector)][span.start : span.stop]


if __name__ == "__main__":
    serve(lambda: ExchangeMember(sys.argv[1]))
