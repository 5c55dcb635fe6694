"""Strangers: `python -m benchmarks._flood KIND KEY PORT...` floods these ports of this machine while it may.

A line on standard input switches the flood from a port of its own, where nobody is disturbed, to the others,
and back, which it answers with the number of connections that it has tried there. It has the lowest priority.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import time
from collections import deque
from contextlib import suppress
from itertools import cycle
from typing import Any, Final

import zmq

from partita.engine.transport import KeyPair
from partita.engine.transport.sockets import stream_connection

KINDS: Final = ("silent", "greeting", "hello", "unlisted key", "one MiB")
_STANDING: Final = 400
_SOCKETS: Final = 300
_GREETING: Final = b"\xff" + bytes(8) + b"\x7f\x03\x01CURVE" + bytes(15) + b"\x00" + bytes(31)
_SAYS: Final = {
    "silent": b"",
    "greeting": _GREETING,
    "hello": _GREETING + b"\x04\xc8\x05HELLO\x01\x00" + bytes(72) + bytes(range(120)),
    "one MiB": _GREETING + b"\x06" + (1 << 20).to_bytes(8, "big") + bytes(200_000),
}


def _ordered() -> bool:
    """Returns whether a line has come. Ends with standard input."""
    if not select.select([sys.stdin], [], [], 0)[0]:
        return False
    if not sys.stdin.readline():
        raise SystemExit
    return True


def _raw(kind: str, ports: list[int]) -> int:
    """Connects as often as it can, until a line comes."""
    standing: deque[socket.socket] = deque()
    tried, ring, says = 0, cycle(ports), _SAYS[kind]
    while tried % 50 or not _ordered():
        tried += 1
        with suppress(OSError):
            standing.append(stream_connection("127.0.0.1", next(ring)))
        if len(standing) >= _STANDING:
            with suppress(OSError):
                standing[_STANDING // 2].send(says)
            standing.popleft().close()
    return tried


def _by_zeromq(key: str, ports: list[int]) -> int:
    """Does whole handshakes with a key that is not listed, each socket as often as libzmq connects again."""
    context: zmq.Context[Any] = zmq.Context()
    own = KeyPair.generate()
    for _ in range(_SOCKETS):
        push = getattr(context, "socket")(zmq.PUSH)  # noqa: B009 (elsewhere it is searched for as text)
        push.linger, push.reconnect_ivl, push.handshake_ivl = 0, 1, 50
        push.curve_publickey, push.curve_secretkey = own.public.encode(), own.secret.encode()
        push.curve_serverkey = key.encode()
        push.connect(f"tcp://127.0.0.1:{ports[0]}")
    while not _ordered():
        time.sleep(0.01)
    context.destroy(linger=0)
    return _SOCKETS


def main() -> None:
    """Waits for lines."""
    kind, key, *ports = sys.argv[1:]
    os.setpriority(os.PRIO_PROCESS, 0, 19)
    listening, tried = [int(port) for port in ports], 0
    with socket.create_server(("127.0.0.1", 0), backlog=1) as decoy:
        while True:
            if kind == "unlisted key":
                sys.stdin.readline() or sys.exit()
                tried += _by_zeromq(key, listening)
            else:
                _raw(kind, [decoy.getsockname()[1]])
                tried += _raw(kind, listening)
            print(tried, flush=True)


if __name__ == "__main__":
    main()
