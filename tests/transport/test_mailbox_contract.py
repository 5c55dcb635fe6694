"""Contract of every mailbox."""

from __future__ import annotations

import gc
import threading
import time
import tracemalloc

import numpy as np
import pytest

from partita.engine.protocol.messages import Credit, Failed, Fetch, Heartbeat, Malformed, Peer, Push, Tensor
from partita.engine.transport import Buffer, MailboxClosed, Payload, PeerStalled, UnknownPeer
from tests.transport.helpers import MIB, Hosts, collect, serve_until


def test_a_message_arrives_with_its_sender_and_incarnation(hosts: Hosts) -> None:
    left, _ = hosts.open("left", incarnation=3)
    right, right_peer = hosts.open("right")
    right.allow([Peer("left", 3, left.endpoint, left.public_key)])
    left.connect(right_peer)
    left.send("right", Push(incarnation=99, sequence=0, shard_incarnation=0, version=7))
    (got,) = collect(right, 1, others=[left])
    assert (got.sender, got.incarnation, got.payload) == ("left", 3, None)
    assert got.message == Push(incarnation=99, sequence=0, shard_incarnation=0, version=7)


@pytest.mark.parametrize("n_bytes", [0, 1, MIB - 1, MIB, MIB + 1, 5 * MIB, 40 * MIB + 3])
def test_a_payload_arrives_as_it_was_at_send(hosts: Hosts, n_bytes: int) -> None:
    left, right = hosts.pair()
    numbers = np.random.default_rng(n_bytes).integers(0, 256, n_bytes, np.uint8)
    expected = numbers.copy()
    left.send("right", Tensor(1, "h1", (((0, 640),),)), numbers)
    numbers[:] = 0
    (got,) = collect(right, 1, others=[left])
    assert isinstance(got.payload, Payload)
    assert got.payload.n_bytes == n_bytes
    landed = np.empty(n_bytes, np.uint8)
    got.payload.copy_into(landed)
    np.testing.assert_array_equal(landed, expected)
    assert got.payload.to_bytes() == expected.tobytes()


def test_several_buffers_arrive_as_one_payload(hosts: Hosts) -> None:
    left, right = hosts.pair()
    states = np.arange(700_000, dtype=np.float32).reshape(700, 1000)
    pieces: list[Buffer] = [states[:3], states[10:300], b"", states[300:305].data, bytearray(b"tail")]
    left.send("right", Tensor(0, "h1", (((0, 3),), ((10, 305),))), pieces)
    (got,) = collect(right, 1, others=[left])
    assert isinstance(got.payload, Payload)
    head, middle, tail = (
        np.empty((3, 1000), np.float32),
        np.empty((295, 1000), np.float32),
        np.empty(4, np.uint8),
    )
    got.payload.copy_into(head, middle, tail)
    np.testing.assert_array_equal(head, states[:3])
    np.testing.assert_array_equal(middle, states[10:305])
    assert tail.tobytes() == b"tail"


def test_messages_of_one_sender_keep_their_order(hosts: Hosts) -> None:
    left, right = hosts.pair()
    payload = np.zeros(MIB + MIB // 2, np.uint8)
    for step in range(300):
        left.send("right", Credit(step), payload if step % 10 == 0 else None)
    got = collect(right, 300, others=[left])
    assert [received.message for received in got] == [Credit(step) for step in range(300)]


def test_large_payloads_cross_without_a_deadlock(hosts: Hosts) -> None:
    left, right = hosts.pair()
    for box, to in ((left, "right"), (right, "left")):
        box.send(to, Fetch(1), np.ones(48 * MIB, np.uint8))
    got = serve_until(
        lambda: (
            left.counters.received_of("Fetch").messages == 1
            and right.counters.received_of("Fetch").messages == 1
        ),
        [left, right],
        "both payloads",
    )
    assert sorted(received.sender for received in got) == ["left", "right"]


def test_counters_count_messages(hosts: Hosts) -> None:
    left, right = hosts.pair()
    for step in range(4):
        left.send("right", Tensor(step, "h1", ()), bytes(100))
    left.send("right", Heartbeat(0))
    collect(right, 5, others=[left])
    for counts in (left.counters.sent, right.counters.received):
        assert {kind: (count.messages, count.payload_bytes) for (_, kind), count in counts.items()} == {
            "Tensor": (4, 400),
            "Heartbeat": (1, 0),
        }
    assert set(left.counters.sent) == {("right", "Tensor"), ("right", "Heartbeat")}
    assert left.counters.sent_of("Tensor").payload_bytes == right.counters.received_of("Tensor").payload_bytes
    assert (right.counters.refused_messages, right.counters.malformed) == (0, 0)


def test_nothing_arrives_within_the_time(hosts: Hosts) -> None:
    left, _ = hosts.pair()
    begun = time.monotonic()
    assert left.receive(0.0) == []
    assert left.receive(0.03) == []
    assert 0.02 < time.monotonic() - begun < 5.0


def test_wake_ends_a_receive_from_another_thread(hosts: Hosts) -> None:
    left, _ = hosts.pair()
    left.receive(0.0)
    thread = threading.Thread(target=left.wake)
    begun = time.monotonic()
    thread.start()
    assert left.receive(60.0) == []
    assert time.monotonic() - begun < 30.0
    thread.join()


def test_a_wake_before_receive_is_not_lost_and_counts_once(hosts: Hosts) -> None:
    left, _ = hosts.pair()
    left.wake()
    begun = time.monotonic()
    assert left.receive(60.0) == []
    assert time.monotonic() - begun < 30.0
    assert left.receive(0.01) == []


def test_messages_of_a_key_that_is_not_authorised_yet_wait(hosts: Hosts) -> None:
    left, left_peer = hosts.open("left")
    right, right_peer = hosts.open("right")
    left.connect(right_peer)
    left.send("right", Fetch(1))
    serve_until(lambda: right.counters.refused_handshakes > 0, [left, right], "a refused handshake")
    right.allow([left_peer])
    assert collect(right, 1, others=[left])[0].message == Fetch(1)


def test_a_revoked_key_is_out_although_its_connection_lives(hosts: Hosts) -> None:
    left, right = hosts.pair()
    left.send("right", Fetch(1))
    collect(right, 1, others=[left])
    right.allow([])
    left.send("right", Fetch(2))
    got = serve_until(lambda: right.counters.refused_messages > 0, [left, right], "a refused message")
    assert got == []


def test_a_revoked_key_does_not_stop_the_others(hosts: Hosts) -> None:
    right, right_peer = hosts.open("right")
    (bad, bad_peer), (good, good_peer) = hosts.open("bad"), hosts.open("good")
    right.allow([bad_peer, good_peer])
    for box in (bad, good):
        box.connect(right_peer)
        box.send("right", Fetch(0))
    collect(right, 2, others=[bad, good])
    right.allow([good_peer])
    bad.send("right", Fetch(1), bytes(3 * MIB))
    good.send("right", Fetch(2), bytes(3 * MIB))
    (got,) = collect(right, 1, others=[bad, good])
    assert got.sender == "good"


def test_a_new_incarnation_replaces_the_old_one_and_its_queue(hosts: Hosts) -> None:
    left, left_peer = hosts.open("left")
    old, old_peer = hosts.open("right", incarnation=0)
    left.connect(old_peer)
    for request in range(100):  # the old one lists nobody, so all of these wait
        left.send("right", Fetch(request))
    new, new_peer = hosts.open("right", incarnation=1)
    new.allow([left_peer])
    left.connect(new_peer)
    left.send("right", Fetch(1000))
    assert [got.message for got in collect(new, 1, others=[left, old])] == [Fetch(1000)]
    old.allow([left_peer])
    assert old.receive(0.3) == []
    left.connect(old_peer)  # a late directory
    left.send("right", Fetch(1001))
    assert [got.message for got in collect(new, 1, others=[left, old])] == [Fetch(1001)]


def test_connecting_again_to_the_same_peer_loses_nothing(hosts: Hosts) -> None:
    left, left_peer = hosts.open("left")
    right, right_peer = hosts.open("right")
    right.allow([left_peer])
    left.connect(right_peer)
    left.send("right", Fetch(1))
    left.connect(right_peer)
    assert collect(right, 1, others=[left])[0].message == Fetch(1)


def test_an_incarnation_is_known_by_its_key(hosts: Hosts) -> None:
    right, right_peer = hosts.open("right")
    first, first_peer = hosts.open("part 0.0", incarnation=0)
    second, second_peer = hosts.open("part 0.0", incarnation=1)
    right.allow([first_peer, second_peer])
    for box in (first, second):
        box.connect(right_peer)
        box.send("right", Fetch(0))
    got = collect(right, 2, others=[first, second])
    assert {(received.sender, received.incarnation) for received in got} == {("part 0.0", 0), ("part 0.0", 1)}


def test_two_peers_cannot_have_one_key(hosts: Hosts) -> None:
    left, right = hosts.pair()
    same = [Peer("a", 0, "", left.public_key), Peer("b", 0, "", left.public_key)]
    with pytest.raises(ValueError, match="'b' and 'a' have the same key"):
        right.allow(same)
    left.send("right", Fetch(1))
    collect(right, 1, others=[left])  # the list from before still holds


def test_a_stalled_peer_is_named_and_what_was_accepted_still_arrives(hosts: Hosts) -> None:
    left, right = hosts.pair(max_backlog=10 * MIB)
    payload = bytes(4 * MIB)

    def overfill() -> None:
        for step in range(1000):
            left.send("right", Tensor(step, "h1", ()), payload)

    with pytest.raises(PeerStalled, match="'right' took nothing for") as stalled:
        overfill()
    accepted = left.counters.sent_of("Tensor").messages
    assert stalled.value.peer == "right"
    assert stalled.value.n_bytes <= 10 * MIB + 4096
    assert 2 <= accepted < 1000
    got = collect(right, accepted, others=[left])
    assert [received.message for received in got] == [Tensor(step, "h1", ()) for step in range(accepted)]
    left.send("right", Fetch(1))
    assert collect(right, 1, others=[left])[0].message == Fetch(1)


def test_one_message_may_be_larger_than_the_backlog(hosts: Hosts) -> None:
    left, right = hosts.pair(max_backlog=MIB)
    left.send("right", Fetch(1), bytes(60 * MIB))
    (got,) = collect(right, 1, others=[left])
    assert isinstance(got.payload, Payload)
    assert got.payload.n_bytes == 60 * MIB


def test_disconnecting_drops_what_waits(hosts: Hosts) -> None:
    left, left_peer = hosts.open("left")
    right, right_peer = hosts.open("right")
    left.connect(right_peer)
    for request in range(100):
        left.send("right", Fetch(request), bytes(MIB))
    left.disconnect("right")
    left.disconnect("right")
    assert right.receive(0.2) == []  # the end of the connection is ZeroMQ's business, and takes a moment
    right.allow([left_peer])
    assert right.receive(0.3) == []
    with pytest.raises(UnknownPeer, match="'right' is not connected"):
        left.send("right", Fetch(0))


def test_sizes_are_refused_at_the_sender(hosts: Hosts) -> None:
    left, right = hosts.pair(max_payload=1000)
    with pytest.raises(ValueError, match="1001 bytes is larger than 1000"):
        left.send("right", Fetch(1), bytes(1001))
    with pytest.raises(ValueError, match="send what is large as its payload"):
        left.send("right", Failed("reason", "x" * (MIB + 1)))
    with pytest.raises(ValueError, match="must be C-contiguous"):
        left.send("right", Fetch(1), np.zeros((4, 4), np.float32)[:, :2])
    left.send("right", Fetch(2), bytes(1000))
    assert collect(right, 1, others=[left])[0].message == Fetch(2)
    assert left.counters.sent_of("Fetch").messages == 1


def test_a_payload_that_is_too_large_for_the_receiver_is_dropped(hosts: Hosts) -> None:
    left, left_peer = hosts.open("left")
    right, right_peer = hosts.open("right", max_payload=2 * MIB)
    right.allow([left_peer])
    left.connect(right_peer)
    left.send("right", Fetch(1), bytes(5 * MIB))
    left.send("right", Fetch(2), bytes(2 * MIB))
    refused, taken = collect(right, 2, others=[left])
    assert isinstance(refused.message, Malformed) and "2097152 are accepted at most" in refused.message.reason
    assert taken.message == Fetch(2)
    assert right.counters.malformed == 5  # its opening and the four chunks after it


def test_a_payload_fits_exactly_or_not_at_all(hosts: Hosts) -> None:
    left, right = hosts.pair()
    left.send("right", Fetch(1), np.arange(10, dtype=np.float32))
    (got,) = collect(right, 1, others=[left])
    assert isinstance(got.payload, Payload)
    room = np.zeros(11, np.float32)
    with pytest.raises(ValueError, match="40 bytes cannot fill 44 bytes"):
        got.payload.copy_into(room)
    with pytest.raises(ValueError, match="not C-contiguous and writable"):
        got.payload.copy_into(np.zeros((10, 2), np.float32)[:, 0])
    fixed = np.zeros(10, np.float32)
    fixed.flags.writeable = False
    with pytest.raises(ValueError, match="not C-contiguous and writable"):
        got.payload.copy_into(fixed)
    assert not room.any()
    assert not fixed.any()


def test_a_closed_mailbox_raises(hosts: Hosts) -> None:
    left, right = hosts.pair()
    left.send("right", Fetch(1), bytes(40 * MIB))
    left.close()
    left.close()
    left.wake()
    for use in (lambda: left.receive(0.0), lambda: left.send("right", Fetch(2))):
        with pytest.raises(MailboxClosed, match="closed"):
            use()
    right.send("left", Fetch(3))  # to nobody: it waits
    assert right.receive(0.05) == []


def test_hosts_as_threads_talk_both_ways(hosts: Hosts) -> None:
    left, right = hosts.pair()
    rounds = 200

    def answer() -> None:
        for _ in range(rounds):
            (got,) = collect(right, 1)
            assert isinstance(got.payload, Payload)
            right.send("left", got.message, got.payload.to_bytes())

    thread = threading.Thread(target=answer)
    thread.start()
    for request in range(rounds):
        left.send("right", Fetch(request), bytes([request % 256]))
        (got,) = collect(left, 1)
        assert got.message == Fetch(request)
        assert isinstance(got.payload, Payload)
        assert got.payload.to_bytes() == bytes([request % 256])
    thread.join()


def test_a_stalled_peer_is_reconnected(hosts: Hosts) -> None:
    left, right = hosts.pair(max_backlog=2 * MIB)
    for _ in range(100):
        try:
            left.send("right", Fetch(0), bytes(MIB))
        except PeerStalled:
            break
    else:
        pytest.fail("it took everything")
    left.reconnect("right")
    left.reconnect("nobody")
    left.send("right", Fetch(1))
    last: object = None
    while last != Fetch(1):
        left.receive(0.0)
        (*_, last) = [last, *(event.message for event in right.receive(0.01))]


@pytest.mark.slow
def test_thousands_of_messages_leave_nothing_in_memory(hosts: Hosts) -> None:
    left, right = hosts.pair()

    def exchange(n: int) -> None:
        for number in range(n):
            left.send("right", Fetch(number), bytes(number % 3 * 1000))
            right.send("left", Credit(number))
            if number % 50 == 49:
                arrived = 0
                while arrived < 100:
                    arrived += len(left.receive(0.001)) + len(right.receive(0.001))

    tracemalloc.start()
    try:
        exchange(500)  # what is kept until it is acknowledged is there
        gc.collect()
        before, _ = tracemalloc.get_traced_memory()
        exchange(3000)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 100_000, f"{(after - before) / 3000:.0f} bytes for each exchange"
