"""Mailboxes of one machine: payloads in shared memory, and the fallback to the socket."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from partita.engine.protocol.messages import Credit, Fetch, Peer, Tensor
from partita.engine.transport import KeyPair, Mailbox, Payload, ZmqMailbox
from partita.engine.transport.shared_link import MAX_HEADER_BYTES
from partita.engine.transport.wire import INLINE_BYTES
from tests.transport.helpers import MIB, Hosts, collect, serve_until

ROWS = (((0, 640),),)


@pytest.fixture
def near(nothing_left: None) -> Hosts:
    return Hosts("shared memory")


def acquaint(left: Mailbox, right: Mailbox) -> None:
    """The first message goes through the encrypted socket, after the offer of a shared-memory link."""
    left.send("right", Fetch(0), bytes(MIB))
    collect(right, 1, others=[left])
    assert left.counters.sent_shared.messages == 0


def test_payloads_are_shared(near: Hosts) -> None:
    left, right = near.pair()
    acquaint(left, right)
    sizes = [INLINE_BYTES + 1, MIB, 0, 3 * MIB, 1, INLINE_BYTES, 4 * MIB]
    numbers = [np.random.default_rng(n).integers(0, 256, n, np.uint8) for n in sizes]
    for step, payload in enumerate(numbers):
        left.send("right", Tensor(step, "h1", ROWS), payload)
    left.send("right", Credit(9))
    *got, last = collect(right, len(sizes) + 1, others=[left])
    assert (last.message, last.payload) == (Credit(9), None)
    for step, one in enumerate(got):
        assert one.message == Tensor(step, "h1", ROWS)
        assert isinstance(one.payload, Payload)
        assert one.payload.is_shared == (sizes[step] > INLINE_BYTES)
        assert one.payload.to_bytes() == numbers[step].tobytes()
    count = left.counters.sent_shared
    assert (count.messages, count.payload_bytes) == (4, sum(sizes) - 1 - INLINE_BYTES)
    assert right.counters.received_shared == count
    assert right.counters.malformed == 0
    near.close()


def test_a_message_is_delivered_once_those_before_it_are(near: Hosts) -> None:
    left, right = near.pair()
    acquaint(left, right)
    sent = 0
    deadline = time.monotonic() + 30.0
    while not left.send("right", Credit(sent), bytes(2 * INLINE_BYTES)):  # until the first is acknowledged
        sent += 1
        collect(right, 1, others=[left])
        left.receive(0.05)
        assert time.monotonic() < deadline
    assert left.send("right", Credit(sent + 1))
    left.close()
    got = collect(right, 2)
    assert [one.message for one in got] == [Credit(sent), Credit(sent + 1)]
    assert isinstance(got[0].payload, Payload) and got[0].payload.n_bytes == 2 * INLINE_BYTES
    near.close()


def test_a_large_header_falls_back_to_the_socket_in_order(near: Hosts) -> None:
    left, right = near.pair()
    acquaint(left, right)
    rows = tuple(((n, n + 1),) for n in range(0, MAX_HEADER_BYTES, 2))
    sent = [Tensor(step, "h1", rows if step % 3 == 1 else ROWS) for step in range(12)]
    for message in sent:
        left.send("right", message, bytes(2 * INLINE_BYTES))
    assert [one.message for one in collect(right, 12, others=[left])] == sent
    assert right.counters.received_shared.messages == 12
    near.close()


def test_a_full_channel_falls_back_to_the_socket_in_order(near: Hosts) -> None:
    left, right = near.pair()
    acquaint(left, right)
    for step in range(2000):
        left.send("right", Credit(step))
    got = collect(right, 2000, others=[left])
    assert [one.message for one in got] == [Credit(step) for step in range(2000)]
    near.close()


@pytest.mark.parametrize(("one", "other"), [("here", "there"), ("here", ""), ("", "")])
def test_other_machines_share_nothing(one: str, other: str, nothing_left: None) -> None:
    boxes = [ZmqMailbox(KeyPair.generate(), machine=label) for label in (one, other)]
    peers = [
        Peer(n, 0, b.endpoint, b.public_key, m) for n, b, m in zip("ab", boxes, (one, other), strict=True)
    ]
    boxes[1].allow(peers[:1])
    boxes[0].connect(peers[1])
    for request in range(3):
        boxes[0].send("b", Fetch(request), bytes(MIB))
        collect(boxes[1], 1, others=boxes[:1])
    assert boxes[0].counters.sent_shared.messages == 0
    for box in boxes:
        box.close()


def test_a_senders_claim_of_its_machine_is_ignored(nothing_left: None) -> None:
    """The label of the launcher decides, not a sender's offer; a rejected sender uses the socket."""
    left, right = (ZmqMailbox(KeyPair.generate(), machine="here") for _ in range(2))
    right.allow([Peer("left", 0, "", left.public_key, "there")])
    left.connect(Peer("right", 0, right.endpoint, right.public_key, "here"))
    for request in range(3):
        left.send("right", Fetch(request), bytes(MIB))
        assert collect(right, 1, others=[left])[0].message == Fetch(request)
    assert left.counters.sent_shared.messages == 0
    left.close()
    right.close()


def test_a_full_ring_falls_back_to_the_socket_in_order(near: Hosts) -> None:
    left, right = near.pair()
    acquaint(left, right)
    kept, n = [], 40
    for step in range(n):  # 20 MiB, of which the ring holds 16
        left.send("right", Credit(step), np.full(MIB // 2, step, np.uint8))
        kept += collect(right, 1, others=[left])
    assert 16 < left.counters.sent_shared.messages < n
    for step, got in enumerate(kept):
        assert got.message == Credit(step)
        assert isinstance(got.payload, Payload)
        assert got.payload.to_bytes() == bytes([step]) * (MIB // 2)
    shared = left.counters.sent_shared.messages
    kept.clear()
    del got
    left.send("right", Credit(n), bytes(MIB))
    (last,) = collect(right, 1, others=[left])
    assert isinstance(last.payload, Payload)
    assert last.payload.is_shared, "what was dropped is room again"
    assert left.counters.sent_shared.messages == shared + 1
    near.close()


def test_a_larger_payload_gets_a_larger_ring(near: Hosts) -> None:
    left, right = near.pair()
    acquaint(left, right)
    ways = []
    for request in range(4):
        left.send("right", Fetch(request), np.full(30 * MIB, request, np.uint8))
        (got,) = collect(right, 1, others=[left])
        assert isinstance(got.payload, Payload)
        assert got.payload.to_bytes() == bytes([request]) * (30 * MIB)
        ways.append(got.payload.is_shared)
    assert ways == [False, True, True, True]
    assert right.counters.cut_connections == 0, "a large message that has come whole is one without end"
    near.close()


def test_a_payload_is_released_once_and_then_not_read(near: Hosts) -> None:
    left, right = near.pair()
    acquaint(left, right)
    left.send("right", Fetch(1), bytes(MIB))
    (got,) = collect(right, 1, others=[left])
    assert isinstance(got.payload, Payload)
    got.payload.release()
    got.payload.release()
    assert got.payload.n_bytes == MIB
    with pytest.raises(ValueError, match="was released"):
        got.payload.to_bytes()
    near.close()


def test_a_payload_outlives_its_mailbox(near: Hosts) -> None:
    left, right = near.pair()
    acquaint(left, right)
    left.send("right", Fetch(1), b"x" * MIB)
    (got,) = collect(right, 1, others=[left])
    near.close()
    assert isinstance(got.payload, Payload)
    assert got.payload.to_bytes() == b"x" * MIB


def test_a_reauthorised_sender_is_received_again(near: Hosts) -> None:
    left, right = near.pair()
    acquaint(left, right)
    sender = Peer("left", 0, "", left.public_key, "here")
    right.allow([])
    left.send("right", Fetch(1), bytes(MIB))
    serve_until(lambda: right.counters.refused_messages > 0, [left, right], "a refused message")
    assert right.counters.received_of("Fetch").messages == 1
    right.allow([sender])
    for request in (2, 3):
        left.send("right", Fetch(request), bytes(MIB))
    # What was sent meanwhile comes, too, and nothing comes twice.
    assert [got.message for got in collect(right, 3, others=[left])] == [Fetch(1), Fetch(2), Fetch(3)]
    near.close()


def test_every_thread_may_send(near: Hosts) -> None:
    """Covers more messages than ZeroMQ takes at once, where the owner of the mailbox sends the rest."""
    left, right = near.pair()
    acquaint(left, right)
    n = 200

    def send(sender: int) -> None:
        for step in range(n):
            left.send("right", Tensor(step, f"of {sender}", ROWS), np.full(20_000, sender, np.uint8))

    threads = [threading.Thread(target=send, args=(sender,)) for sender in range(3)]
    for thread in threads:
        thread.start()
    got = collect(right, 3 * n, others=[left])
    for thread in threads:
        thread.join()
    for sender in range(3):
        own = [one for one in got if getattr(one.message, "buffer", "") == f"of {sender}"]
        assert [one.message for one in own] == [Tensor(step, f"of {sender}", ROWS) for step in range(n)]
        for one in own:
            assert isinstance(one.payload, Payload)
            assert one.payload.to_bytes() == bytes([sender]) * 20_000
    near.close()


SENDER = """
import sys, numpy as np
from partita.engine.protocol.messages import Fetch, Peer
from partita.engine.transport import KeyPair, ZmqMailbox
endpoint, key, public, secret = sys.argv[1:]
box = ZmqMailbox(KeyPair(public, secret), machine="here")
box.connect(Peer("right", 0, endpoint, key, "here"))
request = 0
while True:
    box.send("right", Fetch(request), np.full(1 << 20, request % 251, np.uint8))
    box.receive(0.0)
    request += 1
    if box.counters.sent_shared.messages > 3: print(request, flush=True)
"""


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP])
def test_a_sender_that_is_killed_or_stopped_in_the_middle_leaves_what_is_whole(
    end: signal.Signals, near: Hosts
) -> None:
    right, _ = near.open("right")
    keys = KeyPair.generate()
    right.allow([Peer("left", 0, "", keys.public, "here")])
    arguments = [sys.executable, "-c", SENDER, right.endpoint, right.public_key, keys.public, keys.secret]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE) as sender:
        assert sender.stdout is not None
        try:
            got = serve_until(lambda: right.counters.received_shared.messages > 3, [right], "shared payloads")
            sender.send_signal(end)
            if end == signal.SIGSTOP:
                os.waitid(os.P_PID, sender.pid, os.WSTOPPED)
            else:
                sender.wait()
            got += right.receive(0.2)
            for number, one in enumerate(got):
                assert one.message == Fetch(number)
                assert isinstance(one.payload, Payload)
                assert one.payload.to_bytes() == bytes([number % 251]) * MIB
        finally:
            sender.kill()
    assert right.counters.malformed == 0
    del got, one
    near.close()
