"""How often strangers reach a listening socket is bounded, and known peers are not kept out with them."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from ipaddress import IPv4Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.engine.protocol.messages import Fetch, Peer
from partita.engine.transport import ZmqMailbox
from partita.engine.transport.admission import (
    BURST,
    FLOOD,
    FLOOD_RATE_S,
    RATE_S,
    Admission,
    Budget,
    addresses_of,
    program,
)
from partita.engine.transport.connection_guard import CHECK_S
from partita.engine.transport.sockets import loopback_source, stream_connection
from tests.transport.helpers import Hosts, collect, serve_until
from tests.transport.test_connection_guard import ended, knock

KNOWN = int.from_bytes(bytes((10, 0, 0, 7)), "big")


def flood(budget: Budget, *, per_s: float, seconds: float) -> float:
    """Returns the connections that are let in while so many are tried."""
    admitted, due = 0, 0.0
    for _ in range(round(seconds / CHECK_S)):
        due += per_s * CHECK_S * budget.share
        while due >= 1:
            due -= 1
            admitted += 1
            budget.accept()
        budget.update(CHECK_S)
    return admitted


@given(per_s=st.floats(1, 200_000), seconds=st.floats(2, 60))
def test_what_a_flood_costs_is_bounded(per_s: float, seconds: float) -> None:
    budget = Budget()
    admitted = flood(budget, per_s=per_s, seconds=seconds)
    first = per_s * CHECK_S  # nobody has looked yet
    assert admitted <= BURST + 1.3 * RATE_S * seconds + 2 * first + 64
    flood(budget, per_s=0, seconds=60)
    assert budget.share == 1.0 and budget.tokens == BURST


@pytest.mark.parametrize("per_s", [100, 3_000, 100_000])
def test_a_flood_without_keys_is_let_in_more_and_more_slowly(per_s: float) -> None:
    budget = Budget()
    assert flood(budget, per_s=per_s, seconds=30) > FLOOD
    assert flood(budget, per_s=per_s, seconds=60) <= 60 * RATE_S / 3
    budget.prove()  # somebody has a listed key
    assert flood(budget, per_s=per_s, seconds=10) > 10 * FLOOD_RATE_S
    flood(budget, per_s=0, seconds=15)
    assert budget.share == 1.0


def test_a_crowd_that_proves_its_keys_is_not_kept_waiting() -> None:
    budget = Budget()
    for _ in range(50):
        for _ in range(400):
            budget.accept()
        for _ in range(400):
            budget.prove()
        assert budget.update(CHECK_S) == 1.0


def verdict(
    rules: list[tuple[int, int, int, int]], *, flags: int, source: int, version: int = 4
) -> list[bool]:
    """Runs a program for the least and the largest random number."""
    found = []
    for drawn in (0, 2**32 - 1):
        at, value = 0, 0
        while True:
            code, yes, no, k = rules[at]
            at += 1
            match code:
                case 0x30:
                    value = flags if k == 13 else version << 4 | 5
                case 0x20:
                    value = drawn if k == 0xFFFFF000 + 56 else source
                case 0x54:
                    value &= k
                case 0x74:
                    value >>= k
                case 0x15:
                    at += yes if value == k else no
                case 0x25:
                    at += yes if value > k else no
                case 0x05:
                    at += k
                case 0x06:
                    found.append(k != 0)
                    break
    return found


@given(st.frozensets(st.integers(0, 2**32 - 1), max_size=1200))
def test_the_filter_tells_known_addresses_from_others(known: frozenset[int]) -> None:
    rules = program(0.5, 1.0, known | {KNOWN})
    assert len(rules) <= 4096
    other = next(n for n in range(2000) if n not in known)
    listed = sorted(known | {KNOWN})[:1000]
    assert all(verdict(rules, flags=0x02, source=one) == [True, True] for one in (listed[0], listed[-1]))
    assert verdict(rules, flags=0x02, source=other) == [True, False]
    assert verdict(rules, flags=0x02, source=listed[0], version=6) == [True, False]
    for flags in (0x10, 0x12, 0x18, 0x04, 0x11):
        assert verdict(program(0.0, 0.0, known), flags=flags, source=other) == [True, True]


def test_only_addresses_beyond_this_machine_are_told_apart() -> None:
    endpoints = [
        "tcp://10.0.0.7:5",
        "tcp://127.0.0.1:5",
        "tcp://node-1:5",
        "tcp://[::1]:5",
        "in-process://a/0",
    ]
    peers = [Peer("", n, endpoint, str(n)) for n, endpoint in enumerate(endpoints)]
    own = {int(IPv4Address(loopback_source(key))) for key in ("0", "1")}
    assert addresses_of(peers) == {KNOWN, *own} and len(own) == 2
    assert int(IPv4Address("127.0.0.1")) not in own


def test_a_member_connects_while_strangers_flood_its_machine(zmq_hosts: Hosts) -> None:
    box, box_peer = zmq_hosts.open("box")
    good, good_peer = zmq_hosts.open("good")
    assert isinstance(box, ZmqMailbox)
    box.allow([good_peer])
    silent: list[socket.socket] = []
    for _ in range(40):
        silent += knock(box.endpoint, 50)
        box.receive(0.01)
    if not box._guard._admission.is_supported:
        pytest.skip("this kernel takes no packet filter")
    assert box._guard._admission.shares[0] < 0.1
    good.connect(box_peer)
    good.send("box", Fetch(1))
    assert [got.message for got in collect(box, 1, others=[good])] == [Fetch(1)]
    assert box._guard._admission.shares[1] == 1.0
    for one in silent:
        one.close()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0), backlog=128) as made:
        made.setblocking(False)
        yield made


def admitted(listener: socket.socket, tries: int) -> int:
    made = []
    for _ in range(tries):
        made.append(stream_connection(*listener.getsockname()))
    n = 0
    with suppress(BlockingIOError):
        while True:
            listener.accept()[0].close()
            n += 1
    for one in made:
        one.close()
    return n


def test_the_kernel_takes_the_filter_and_gives_it_up(listener: socket.socket) -> None:
    admission = Admission(listener.fileno())
    admission.expect([Peer("", 0, "tcp://10.0.0.7:5", "key")])
    admission.update(0.0)
    for _ in range(2000):
        admission.budget_of(-1).accept()  # of one that has ended
    admission.update(0.001)
    if not admission.is_supported:
        pytest.skip("this kernel takes no packet filter")
    assert admission.shares[0] < 0.01 and admission.shares[1] == 1.0
    assert admitted(listener, 50) <= 10
    for n in range(600):
        admission.update(1 + n / 10)
    assert admission.shares == (1.0, 1.0)
    assert admitted(listener, 50) == 50


def test_a_flood_is_kept_out_and_members_go_on(zmq_hosts: Hosts) -> None:
    good, good_peer = zmq_hosts.open("good")
    box, box_peer = zmq_hosts.open("box")
    assert isinstance(box, ZmqMailbox)
    box.allow([good_peer])
    good.connect(box_peer)
    good.send("box", Fetch(0))
    collect(box, 1, others=[good])
    silent: list[socket.socket] = []
    began = time.monotonic()
    while box._guard._admission.shares[0] == 1.0:
        silent += knock(box.endpoint, 100)
        good.send("box", Fetch(1))
        checked_at = time.monotonic() + CHECK_S  # a flood is seen when the guard looks next
        while time.monotonic() < checked_at:
            box.receive(CHECK_S / 10)
            good.receive(0.0)
    took_s = time.monotonic() - began
    assert len(silent) < 3 * BURST + RATE_S * took_s
    good.send("box", Fetch(2), bytes(100_000))
    serve_until(lambda: box.counters.received_of("Fetch").payload_bytes == 100_000, [box, good], "it")
    for one in silent:
        one.close()
    assert ended([]) == 0
