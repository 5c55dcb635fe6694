"""Bound on how often strangers reach a listening socket: the kernel drops most of their first packets.

libzmq accepts connections as fast as they come, and each costs processor time before it is known who
connects: about 60 µs, with the arithmetic of a CURVE handshake 350 µs. So a connection takes a token, and one
that has proved a listed key gives it back. Where tokens are used up, a packet filter on the listening socket
lets only a share of new connections in, at random: the others are dropped before a process sees them, and a
client that is dropped tries again. Connections that exist are not concerned. Addresses of peers, and those
from which a key was proved lately, have tokens of their own, so strangers elsewhere do not keep them out.
Over loopback each peer has an address of its own for that (`loopback_source`).

Linux only; where the kernel takes no filter, `ConnectionGuard` closes what is too much after it was accepted.
"""

from __future__ import annotations

import contextlib
import ctypes
import ipaddress
import socket
import struct
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from partita.engine.protocol.messages import Peer
from partita.engine.transport.sockets import loopback_source, tcp_view

BURST: Final = 256.0
"""Connections without a listed key that are let in at once."""

RATE_S: Final = 32.0
"""And per second after that: at most 1.2% of a core."""

FLOOD_RATE_S: Final = 4.0
"""Per second where the last `FLOOD` connections all had no listed key: at most 0.2% of a core."""

FLOOD: Final = 256
_QUIET_S: Final = 2.0  # without a connection, after which a flood is over

_REOPENS: Final = 64.0  # tokens from which the share grows again
_GROWTH: Final = 1.1  # of the share, for each check
_DEBT: Final = 64.0
_LEAST: Final = 2.0**-16
_LOOPBACK: Final = 0x7F000001  # of whoever does not ask for another
_MAX_PROVED: Final = 256
_MAX_KNOWN: Final = 1000  # addresses; the kernel takes 4096 instructions

_INSTRUCTION: Final = struct.Struct("=HBBI")
_PROGRAM: Final = struct.Struct("@HP")
_ATTACH, _DETACH = 26, 27  # SO_ATTACH_FILTER, SO_DETACH_FILTER
_TAKE: Final = (0x06, 0, 0, 0xFFFFFFFF)
_DROP: Final = (0x06, 0, 0, 0)
_IP: Final = 0xFFF00000  # offset of the IP header
_RANDOM: Final = 0xFFFFF000 + 56


@dataclass(slots=True)
class Budget:
    """Tokens for new connections, and the share of them that is let in meanwhile."""

    tokens: float = BURST
    share: float = 1.0
    _accepted: int = 0
    _unproved: int = 0  # connections since the last one with a listed key
    _quiet_s: float = 0.0  # since the last connection

    def accept(self) -> None:
        """Takes a token for a connection."""
        self.tokens -= 1
        self._accepted += 1
        self._unproved += 1

    def prove(self) -> None:
        """Gives the token of a connection back, whose key is listed."""
        self.tokens = min(self.tokens + 1, BURST)
        self._unproved = 0

    def update(self, elapsed_s: float) -> float:
        """Returns the share from now on, `elapsed_s` seconds after the last update."""
        is_flood = self._unproved >= FLOOD and self._quiet_s < _QUIET_S
        gained = (FLOOD_RATE_S if is_flood else RATE_S) * elapsed_s
        accepted, self._accepted = self._accepted, 0
        self.tokens = max(min(self.tokens + gained, BURST), -_DEBT)
        if self.tokens <= 0 < accepted and accepted > gained:
            self.share = max(self.share * min(0.5, gained / accepted), _LEAST)
        elif self.tokens > _REOPENS:
            self.share = min(self.share * _GROWTH, 1.0)
        self._quiet_s = 0.0 if accepted else self._quiet_s + elapsed_s
        if self.tokens == BURST:
            self._unproved = 0
        return self.share


def addresses_of(peers: Iterable[Peer]) -> frozenset[int]:
    """Returns the IPv4 addresses from which peers connect, as numbers; none for names."""
    found: set[int] = set()
    for peer in peers:
        host = peer.endpoint.removeprefix("tcp://").rpartition(":")[0]
        with contextlib.suppress(ValueError):
            address = ipaddress.IPv4Address(host)
            found.add(int(ipaddress.IPv4Address(loopback_source(peer.public_key))))
            if not address.is_loopback:
                found.add(int(address))
    return frozenset(found)


def program(share: float, known_share: float, known: Iterable[int]) -> list[tuple[int, int, int, int]]:
    """Returns a classic BPF program that takes these shares of the first packets of connections.

    Args:
        share: of packets from other addresses (0 to 1).
        known_share: of packets from known ones.
        known: IPv4 addresses, as numbers.
    """
    addresses = sorted(known)[:_MAX_KNOWN]
    first = [
        (0x30, 0, 0, 13),  # the flags of the TCP header
        (0x54, 0, 0, 0x12),  # SYN and ACK
        (0x15, 1, 0, 0x02),  # only SYN: a new connection
        _TAKE,
        (0x30, 0, 0, _IP),
        (0x74, 0, 0, 4),
        (0x15, 1, 0, 4),
        (0x05, 0, 0, 2 * len(addresses) + 1),  # not IPv4: as any other
        (0x20, 0, 0, _IP + 12),  # the source
    ]
    for n, address in enumerate(addresses):
        first += [(0x15, 0, 1, address), (0x05, 0, 0, 2 * (len(addresses) - n - 1) + 4)]
    return [*first, *_taking(share), *_taking(known_share)]


def _taking(share: float) -> list[tuple[int, int, int, int]]:
    return [(0x20, 0, 0, _RANDOM), (0x25, 1, 0, min(int(share * 2**32), 2**32 - 1)), _TAKE, _DROP]


def _source_of(descriptor: int) -> int | None:
    """Returns the IPv4 address at the other end of a connection; None if it has ended, or has none."""
    try:
        with tcp_view(descriptor) as view:
            return int.from_bytes(socket.inet_aton(view.getpeername()[0]), "big")
    except (OSError, IndexError, TypeError, ValueError):  # or the descriptor is of another socket by now
        return None


@dataclass(eq=False)
class Admission:
    """New connections at one listening socket of libzmq, given by its descriptor."""

    listening: int

    def __post_init__(self) -> None:
        self._others, self._peers = Budget(), Budget()
        self._expected: frozenset[int] = frozenset()
        self._proved: OrderedDict[int, None] = OrderedDict()  # addresses, the latest last
        self._known: frozenset[int] = frozenset()
        self._set: tuple[float, float, frozenset[int]] = (1.0, 1.0, self._known)
        self._updated_at: float | None = None
        self.is_supported = self.listening >= 0

    @property
    def shares(self) -> tuple[float, float]:
        """Shares of connections from other and from known addresses that are let in."""
        return self._others.share, self._peers.share

    def expect(self, peers: Iterable[Peer]) -> None:
        """Gives these peers, and those that have proved their keys lately, tokens of their own."""
        self._expected = addresses_of(peers)
        self._known = self._expected | frozenset(self._proved)
        self._apply()  # at once: one whose first packet is dropped waits for a second

    def budget_of(self, descriptor: int) -> Budget:
        """Returns the budget of an accepted connection."""
        return self._peers if _source_of(descriptor) in self._known else self._others

    def prove(self, descriptor: int, budget: Budget) -> None:
        """Gives the token of a connection back, whose key is listed, and knows its address."""
        budget.prove()
        source = _source_of(descriptor)
        if source is None or source == _LOOPBACK:
            return
        is_new = source not in self._proved
        self._proved[source] = None
        self._proved.move_to_end(source)
        while len(self._proved) > _MAX_PROVED:
            self._proved.popitem(last=False)
        if is_new:
            self._known = self._expected | frozenset(self._proved)

    def update(self, now: float) -> None:
        """Sets the filter anew where that is necessary (`now` in seconds)."""
        elapsed_s = 0.0 if self._updated_at is None else max(now - self._updated_at, 0.0)
        self._updated_at = now
        self._others.update(elapsed_s)
        self._peers.update(elapsed_s)
        self._apply()

    def _apply(self) -> None:
        wanted = (*self.shares, self._known)
        if wanted[:2] == (1.0, 1.0):
            wanted = 1.0, 1.0, frozenset()
        if wanted != self._set and self.is_supported:
            self._set = wanted
            self._attach(*wanted)

    def _attach(self, share: float, known_share: float, known: frozenset[int]) -> None:
        try:
            with tcp_view(self.listening) as view:
                if share == known_share == 1.0:
                    view.setsockopt(socket.SOL_SOCKET, _DETACH, 0)
                    return
                data = b"".join(_INSTRUCTION.pack(*one) for one in program(share, known_share, known))
                kept = ctypes.create_string_buffer(data)
                n = len(data) // _INSTRUCTION.size
                view.setsockopt(socket.SOL_SOCKET, _ATTACH, _PROGRAM.pack(n, ctypes.addressof(kept)))
        except OSError:
            self.is_supported = False
