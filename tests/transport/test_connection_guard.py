"""The cost of a connection before its handshake, and before a message is complete, is bounded."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import socket
import subprocess
import sys
import time

import psutil
import pytest

from partita.engine.protocol.events import Received
from partita.engine.protocol.messages import Fetch, Malformed, Peer
from partita.engine.transport import KeyPair, ZmqMailbox
from partita.engine.transport.connection_guard import MAX_HANDSHAKING, MAX_UNDELIVERED_BYTES, _Connection
from partita.engine.transport.sockets import stream_connection
from tests.transport.helpers import DEADLINE_S, MIB, Hosts, collect

ENDLESS = """
import sys, zmq
context = zmq.Context()
push = getattr(context, "socket")(zmq.PUSH)  # elsewhere it is searched for as text
push.linger = 0
public, secret, server, endpoint = (text.encode() for text in sys.argv[1:5])
push.curve_publickey, push.curve_secretkey, push.curve_serverkey = public, secret, server
push.connect(endpoint)
push.send(b"by which it is known")
chunk = zmq.Frame(bytes(1 << 20))
for _ in range(int(sys.argv[5])):
    push.send(chunk, zmq.SNDMORE, copy=False)
push.send(b"")
sys.stdin.read()
"""


def reasons(arrived: list[Received]) -> list[str]:
    """Returns how the member has misbehaved."""
    return [
        got.message.reason for got in arrived if got.sender == "odd" and isinstance(got.message, Malformed)
    ]


@pytest.mark.parametrize("first", [False, True], ids=["at first", "after a good one"])
def test_a_message_without_end_is_cut_off_and_others_are_served(zmq_hosts: Hosts, first: bool) -> None:
    good, good_peer = zmq_hosts.open("good")
    box, box_peer = zmq_hosts.open("box")
    keys = KeyPair.generate()
    box.allow([good_peer, Peer("odd", 0, "", keys.public)])
    good.connect(box_peer)
    n_chunks = 40 * MAX_UNDELIVERED_BYTES // MIB
    arguments = keys.public, keys.secret, box.public_key, box.endpoint, str(n_chunks)
    before = psutil.Process().memory_info().rss
    odd = subprocess.Popen([sys.executable, "-c", ENDLESS, *arguments], stdin=subprocess.PIPE)
    try:
        largest, deadline = before, time.monotonic() + DEADLINE_S
        named: list[str] = []
        while not box.counters.cut_connections:
            assert time.monotonic() < deadline, "nobody was cut off"
            if first:
                good.send("box", Fetch(0))
                good.receive(0.0)
            named += reasons(box.receive(0.01))
            largest = max(largest, psutil.Process().memory_info().rss)
    finally:
        odd.kill()
        odd.communicate()
    named += reasons(box.receive(0.0))
    assert "a message without end, of which 24 MiB have come" in named
    assert largest - before < n_chunks * MIB / 2, "all of it was taken"
    good.send("box", Fetch(7), bytes(3 * MIB))
    while True:
        got = collect(box, 1, others=[good])[-1]
        if got.message == Fetch(7):
            break
    assert got.sender == "good"


def test_large_messages_of_a_correct_peer_are_never_cut(zmq_hosts: Hosts) -> None:
    left, right = zmq_hosts.pair()
    for n in range(4):
        left.send("right", Fetch(n), bytes(2 * MAX_UNDELIVERED_BYTES))
    time_of_a_busy_host = time.monotonic() + 0.3
    while time.monotonic() < time_of_a_busy_host:
        left.receive(0.01)  # right does not look meanwhile
    got = collect(right, 4, others=[left])
    assert [event.message for event in got] == [Fetch(n) for n in range(4)]
    assert right.counters.cut_connections == 0


def knock(endpoint: str, n: int) -> list[socket.socket]:
    """Connections of somebody who says nothing, whether or not they get through."""
    port = int(endpoint.rsplit(":", 1)[1])
    made = [stream_connection("127.0.0.1", port) for _ in range(n)]
    for one in made:
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 500)
    return made


def ended(silent: list[socket.socket]) -> int:
    """Number of connections that the other side has closed."""
    poll = select.poll()
    for one in silent:
        poll.register(one, select.POLLRDHUP | select.POLLHUP | select.POLLERR)
    return len(poll.poll(0))


def open_descriptors() -> int:
    return psutil.Process().num_fds()


@pytest.mark.parametrize("n", [1000, pytest.param(12_000, marks=pytest.mark.slow)])
def test_silent_connections_cost_few_descriptors(zmq_hosts: Hosts, n: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < n + 2000:
        pytest.skip(f"{n} connections need {n + 2000} descriptors, and {hard} are allowed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    good, good_peer = zmq_hosts.open("good")
    box, box_peer = zmq_hosts.open("box")
    box.allow([good_peer])
    good.connect(box_peer)
    silent: list[socket.socket] = []
    try:
        before, most = open_descriptors(), 0
        while len(silent) < n:
            silent += knock(box.endpoint, 100)
            box.receive(0.03)
            most = max(most, open_descriptors() - before - len(silent))
        assert most < MAX_HANDSHAKING + 400, "so many descriptors were taken by strangers"
        good.send("box", Fetch(1))
        assert [event.message for event in collect(box, 1, others=[good])] == [Fetch(1)]
        deadline = time.monotonic() + DEADLINE_S
        while ended(silent) < len(silent):
            assert time.monotonic() < deadline, f"{len(silent) - ended(silent)} are still there"
            box.receive(0.02)
            good.receive(0.0)
    finally:
        for one in silent:
            one.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("free", [0, 1, 2])
def test_sending_needs_no_free_descriptor(free: int, nothing_left: None) -> None:
    """A larger payload wants a larger ring, which needs descriptors; without them it takes the socket."""
    hosts = Hosts("shared memory")
    left, right = hosts.pair()
    left.send("right", Fetch(0))
    assert [event.message for event in collect(right, 1, others=[left])] == [Fetch(0)]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_descriptors() + 30, hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.dup(0))
        for _ in range(free):
            os.close(taken.pop())
        left.send("right", Fetch(1), bytes(8 * MIB))
        assert [event.message for event in collect(right, 1, others=[left])] == [Fetch(1)]
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        hosts.close()


def test_closing_forgets_the_watched_connections(nothing_left: None) -> None:
    with ZmqMailbox(KeyPair.generate()) as box:
        silent = knock(box.endpoint, 3)
        deadline = time.monotonic() + DEADLINE_S
        while len(box._guard._open) < 3:
            assert time.monotonic() < deadline
            box.receive(0.01)
    for one in silent:
        one.close()


def test_a_descriptor_that_libzmq_has_closed_is_forgotten(zmq_hosts: Hosts) -> None:
    box, _ = zmq_hosts.open("box")
    assert isinstance(box, ZmqMailbox)
    gone = os.dup(0)
    os.close(gone)
    box._guard._open[gone] = _Connection(0.0)
    box._guard.cut(gone)
    box._guard._open[gone] = _Connection(0.0)
    box._guard.check(float("inf"))
    assert gone not in box._guard._open
    assert box.counters.cut_connections == 0
