from __future__ import annotations

import re
import socket as plain_socket
from pathlib import Path

import pytest

from partita.engine.protocol.messages import Peer
from partita.engine.transport import EndpointUnavailable, KeyPair, ZmqMailbox
from partita.engine.transport.sockets import check_endpoint, check_library

ROOT = Path(__file__).parents[2]


def test_sockets_are_made_in_one_place_only() -> None:
    makers = re.compile(r"\.socket\(|zmq\.Socket\(|SHADOW|zmq\.asyncio|\.shadow\(")
    offenders = [
        f"{path.relative_to(ROOT)}:{number}"
        for room in ("engine", "partitioner", "layers", "examples", "benchmarks", "tests")
        for path in sorted((ROOT / room).rglob("*.py"))
        if path not in (ROOT / "engine/transport/sockets.py", Path(__file__))
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if makers.search(line) and "`.socket(`" not in line
    ]
    assert offenders == []


def test_every_listening_socket_is_locked() -> None:
    source = (ROOT / "engine/transport/sockets.py").read_text()
    # The inbox, the authenticator inside the process, a stream link, whose peer must send a token, and the
    # server of pages, whose browsers must.
    assert source.count(".bind(") == 4
    assert source.count("self._context.socket(") == 3  # and the events of the inbox, which connects


@pytest.mark.parametrize("version", [(4, 3, 4), (4, 2, 9), (3, 9, 9)])
def test_an_old_library_is_refused(version: tuple[int, int, int]) -> None:
    with pytest.raises(RuntimeError, match=r"is older than 4\.3\.5"):
        check_library(version, has_curve=True)


def test_a_library_without_curve_is_refused() -> None:
    check_library((4, 3, 5), has_curve=True)
    with pytest.raises(RuntimeError, match="without CURVE"):
        check_library((4, 4, 0), has_curve=False)


@pytest.mark.parametrize(
    "endpoint",
    [
        "",
        "tcp://",
        "ipc:///tmp/x",
        "inproc://x",
        "tcp://*:5555",
        "tcp://0.0.0.0:5555",
        "tcp://[::]:5",
        "tcp://a:0",
        "tcp://a:70000",
        "tcp://a:b",
        "127.0.0.1:5555",
        "tcp://127.0.0.1:5555;x",
        "udp://127.0.0.1:1",
        "tcp://127.0.0.1",
    ],
)
def test_what_is_not_an_endpoint_is_refused(endpoint: str, nothing_left: None) -> None:
    with pytest.raises(ValueError, match=re.escape(f"'{endpoint}'")):
        ZmqMailbox(KeyPair.generate(), endpoint=endpoint)


def test_a_peer_needs_a_port() -> None:
    check_endpoint("tcp://127.0.0.1:*", listening=True)
    check_endpoint("tcp://node-7.example:5555", listening=False)
    check_endpoint("tcp://[::1]:5555", listening=False)
    with pytest.raises(ValueError, match="write tcp://HOST:PORT"):
        check_endpoint("tcp://127.0.0.1:*", listening=False)


@pytest.mark.parametrize("key", ["", "x" * 39, "x" * 41, "\x00" * 40, "é" * 40])
def test_a_peer_needs_a_key(key: str, nothing_left: None) -> None:
    with (
        ZmqMailbox(KeyPair.generate()) as box,
        pytest.raises(ValueError, match=r"'part 0\.1' cannot be connected"),
    ):
        box.connect(Peer("part 0.1", 0, "tcp://127.0.0.1:5555", key))


def test_a_port_in_use_is_reported_in_one_sentence(nothing_left: None) -> None:
    with ZmqMailbox(KeyPair.generate()) as first:
        with pytest.raises(EndpointUnavailable) as raised:
            ZmqMailbox(KeyPair.generate(), endpoint=first.endpoint)
        assert str(raised.value) == f"{first.endpoint} is already in use; choose another port or leave it out"
        assert isinstance(raised.value, OSError)


def test_an_address_of_another_machine_is_refused(nothing_left: None) -> None:
    with pytest.raises(EndpointUnavailable, match=r"cannot listen on tcp://192\.0\.2\.1:5555"):
        ZmqMailbox(KeyPair.generate(), endpoint="tcp://192.0.2.1:5555")


def test_it_listens_on_loopback_by_default(nothing_left: None) -> None:
    with ZmqMailbox(KeyPair.generate()) as box:
        host, port = box.endpoint.removeprefix("tcp://").split(":")
        assert host == "127.0.0.1"
        plain_socket.create_connection((host, int(port))).close()
