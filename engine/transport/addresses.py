"""Addresses of this machine, and whether an address can be reached: the words of every network error.

An interface is named as in `ip address`. Nothing here sends a byte of a protocol: to reach an address means
that its port accepts a connection.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
from typing import Final

import psutil

from partita.engine.transport.sockets import source_towards

REACH_S: Final = 3.0
"""Seconds after which an address that does not answer counts as unreachable."""

_ENDPOINT: Final = re.compile(r"tcp://(\[(?P<six>[^]]+)\]|(?P<host>[^:\[\]]+)):(?P<port>\d+)", flags=re.ASCII)


def interfaces() -> dict[str, str]:
    """Returns the IPv4 address of each interface of this machine that has one, by name."""
    return {
        name: address.address
        for name, addresses in psutil.net_if_addrs().items()
        for address in addresses
        if address.family == socket.AF_INET
    }


def interface_of(address: str) -> str:
    """Returns the name of the interface with an address; "" where none has it."""
    return next((name for name, found in interfaces().items() if found == address), "")


def described(address: str) -> str:
    """Words an address of this machine with its interface: `10.0.0.2 (eth1)`."""
    name = interface_of(address)
    return f"{address} ({name})" if name else address


def address_of(interface: str) -> str:
    """Returns the address of an interface.

    Raises:
        ValueError: there is no such interface, or it has no IPv4 address.
    """
    found = interfaces()
    if interface not in found:
        has = ", ".join(f"{name} {address}" for name, address in found.items()) or "none"
        raise ValueError(f"this machine has no interface '{interface}' with an address; it has {has}")
    return found[interface]


def own_address(*names: str) -> str:
    """Returns the address of this machine that one of its names means; else its first one but loopback.

    Args:
        *names: host names or addresses, tried before the name that the system has for this machine.

    Raises:
        OSError: this machine has no address but loopback.
    """
    here = [address for address in interfaces().values() if not address.startswith("127.")]
    for name in filter(None, (*names, socket.gethostname())):
        with contextlib.suppress(OSError):
            found = socket.gethostbyname(name)
            if found in here:
                return found
    if not here:
        raise OSError("this machine has no address but loopback, at which other machines cannot reach it")
    return here[0]


def split(endpoint: str) -> tuple[str, int]:
    """Returns host and port of `tcp://HOST:PORT`.

    Raises:
        ValueError: it is not an endpoint with a port.
    """
    match = _ENDPOINT.fullmatch(endpoint)
    if match is None:
        raise ValueError(f"'{endpoint}' is not an address; write tcp://HOST:PORT")
    return match["six"] or match["host"], int(match["port"])


def address_towards(endpoint: str) -> str:
    """Returns the address of this machine from which it reaches an endpoint; nothing is sent.

    Raises:
        OSError: no interface leads there, or the host has no address.
        ValueError: it is not an endpoint.
    """
    host, port = split(endpoint)
    try:
        return source_towards(host, port)
    except OSError as error:
        raise OSError(f"{endpoint} cannot be reached from this machine: {_why(error)}") from error


def unreachable(endpoint: str, *, source: str | None = None, timeout_s: float = REACH_S) -> str | None:
    """Opens and closes a connection to an endpoint; returns why that failed, in a few words, or None.

    Args:
        endpoint: `tcp://HOST:PORT`.
        source: address of this machine from which to connect; any if not given.
        timeout_s: seconds to wait.
    """
    try:
        host, port = split(endpoint)
        with socket.create_connection((host, port), timeout_s, (source, 0) if source else None):
            return None
    except TimeoutError:
        return f"no answer within {timeout_s:g} s: another network, or a firewall"
    except (OSError, ValueError) as error:
        return _why(error)


def _why(error: OSError | ValueError) -> str:
    if isinstance(error, socket.gaierror):
        return "its name has no address"
    if not isinstance(error, OSError):
        return str(error)
    if error.errno == errno.ECONNREFUSED:
        return "nothing listens at this port"
    if error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH):
        return "no interface of this machine leads there"
    return (os.strerror(error.errno) if error.errno else str(error)).lower()
