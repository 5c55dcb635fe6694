"""Shared helpers of the transport's tests: mailboxes of every kind, and waiting without sleeping."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from partita.engine.protocol.events import Received
from partita.engine.protocol.messages import Peer
from partita.engine.transport import InProcessNetwork, KeyPair, Mailbox, ZmqMailbox

DEADLINE_S = 30.0
MIB = 1 << 20


class Hosts:
    """Opens mailboxes of one kind and closes them all. Knows each as a `Peer`."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.network = InProcessNetwork()
        self.opened: list[Mailbox] = []

    def open(
        self, name: str, *, incarnation: int = 0, max_payload: int = 256 * MIB, max_backlog: int = 256 * MIB
    ) -> tuple[Mailbox, Peer]:
        box: Mailbox
        if self.kind != "in-process":
            box = ZmqMailbox(
                KeyPair.generate(), max_payload=max_payload, max_backlog=max_backlog, machine=self.machine
            )
        else:
            box = self.network.mailbox(
                name, incarnation=incarnation, max_payload=max_payload, max_backlog=max_backlog
            )
        self.opened.append(box)
        return box, Peer(name, incarnation, box.endpoint, box.public_key, self.machine)

    @property
    def machine(self) -> str:
        """The label of all of them."""
        return "here" if self.kind == "shared memory" else ""

    def pair(self, **bounds: int) -> tuple[Mailbox, Mailbox]:
        """Mailboxes "left" and "right" that know each other."""
        left, left_peer = self.open("left", **bounds)
        right, right_peer = self.open("right", **bounds)
        left.allow([right_peer])
        right.allow([left_peer])
        left.connect(right_peer)
        right.connect(left_peer)
        return left, right

    def close(self) -> None:
        for box in self.opened:
            box.close()


def serve_until(done: Callable[[], bool], boxes: Sequence[Mailbox], what: str) -> list[Received]:
    """Lets mailboxes receive in turn until `done`, and returns what has arrived at any of them."""
    arrived: list[Received] = []
    deadline = time.monotonic() + DEADLINE_S
    while not done():
        assert time.monotonic() < deadline, f"waited {DEADLINE_S} s for {what}"
        for box in boxes:
            arrived += box.receive(0.005)
    return arrived


def collect(box: Mailbox, n: int, *, others: Iterable[Mailbox] = ()) -> list[Received]:
    """The next n messages of a mailbox, while the others do what they have to do in `receive`."""
    arrived: list[Received] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(arrived) < n:
        assert time.monotonic() < deadline, f"{len(arrived)} of {n} messages in {DEADLINE_S} s: {arrived}"
        for other in others:
            assert other.receive(0.0) == []
        arrived += box.receive(0.005)
    return arrived
