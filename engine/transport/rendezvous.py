"""Rendezvous of hosts of one machine and one user over Unix sockets without files.

The address is abstract: it is derived from the host's public key, belongs to the network namespace, and
disappears with the process. Knowing it grants nothing: both sides ask the kernel for the other's user, and a
connection counts only with a token that the authenticated connection has carried.
"""

from __future__ import annotations

import array
import os
import socket
import struct
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from partita.engine.transport.sockets import local_socket

TOKEN_BYTES: Final = 16

_MAX_PENDING: Final = 64  # connections that were not announced yet; the oldest is dropped
_CREDENTIALS: Final = struct.Struct("iii")  # process, user, group
_RIGHTS: Final = (socket.SOL_SOCKET, socket.SCM_RIGHTS)


@dataclass(frozen=True, slots=True)
class LocalConnection:
    """A packet socket to another host of this machine, and the descriptor it has passed."""

    channel: socket.socket
    descriptor: int

    def close(self) -> None:
        """Closes socket and descriptor."""
        self.channel.close()
        os.close(self.descriptor)


class Rendezvous:
    """Listening socket for hosts of this machine; unknown clients cost nothing before `take`."""

    def __init__(self, public_key: str) -> None:
        """Listens at the address of this host's public key.

        Raises:
            OSError: the address is in use, or there are no such sockets.
        """
        self._pending: OrderedDict[bytes, LocalConnection] = OrderedDict()
        self._socket = local_socket()
        try:
            self._socket.bind(_address(public_key))
            self._socket.listen(_MAX_PENDING)
        except BaseException:
            self._socket.close()
            raise

    def take(self, token: bytes) -> LocalConnection | None:
        """Returns the connection with this token, now the caller's; None if there is none."""
        self.sweep()
        return self._pending.pop(token, None)

    def sweep(self) -> None:
        """Accepts those that wait, at most as many as can: so strangers do not fill the queue for long."""
        for _ in range(_MAX_PENDING):
            try:
                client, _unnamed = self._socket.accept()
            except OSError:
                break
            if not self._add(client):
                client.close()

    def _add(self, client: socket.socket) -> bool:
        """Reads token and descriptor without waiting: an announced client has sent both before."""
        client.setblocking(False)
        if not _is_own(client):
            return False
        try:
            token, ancillary, _, _ = client.recvmsg(
                TOKEN_BYTES + 1, socket.CMSG_LEN(4), socket.MSG_CMSG_CLOEXEC
            )
        except OSError:
            return False
        rights = [data for level, kind, data in ancillary if (level, kind) == _RIGHTS and len(data) == 4]
        if not rights:
            return False
        if token in self._pending:
            self._pending.pop(token).close()
        self._pending[token] = LocalConnection(client, *array.array("i", rights[0]))
        while len(self._pending) > _MAX_PENDING:
            self._pending.popitem(last=False)[1].close()
        return True

    def close(self) -> None:
        """Closes the listening socket and every pending connection."""
        self._socket.close()
        while self._pending:
            self._pending.popitem()[1].close()


def connect(public_key: str, token: bytes, descriptor: int) -> socket.socket | None:
    """Connects to the host with this key and passes it a descriptor. Never blocks.

    Returns:
        The socket; None where no host of this user listens, or its backlog is full.
    """
    try:
        client = local_socket()
    except OSError:  # no descriptor is free
        return None
    try:
        client.connect(_address(public_key))
        rights = (*_RIGHTS, array.array("i", [descriptor]))
        if _is_own(client) and client.sendmsg([token], [rights]) == len(token):
            return client
    except OSError:
        pass  # as if no host listened
    client.close()
    return None


def _address(public_key: str) -> bytes:
    return b"\0partita " + public_key.encode("ascii")


def _is_own(connection: socket.socket) -> bool:
    """Returns whether the kernel reports the other end as a process of the same user."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(found)
    return bool(user == os.geteuid())
