"""Lets hosts of one machine and one user find each other: Unix sockets that are no files.

A doorway's address is an abstract one: it is known by the host's public key, belongs to the network
namespace, and vanishes with the process, however that ends. Nobody needs to be trusted for knowing it: both
sides ask the kernel which user the other is, and a visitor counts only with a token that the authenticated
connection has brought.
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

_MOST_KEPT: Final = 64  # visitors that were not announced yet; the oldest makes room
_CREDENTIALS: Final = struct.Struct("iii")  # process, user, group


@dataclass(frozen=True, slots=True)
class Visit:
    """A visitor: the socket to it, whose packets keep their borders, and the descriptor that it has left."""

    channel: socket.socket
    descriptor: int

    def close(self) -> None:
        """Closes both."""
        self.channel.close()
        os.close(self.descriptor)


class Doorway:
    """Where other hosts come to this one. Strangers cost nothing before `take` is called."""

    def __init__(self, public_key: str) -> None:
        """Listens.

        Args:
            public_key: of this host.

        Raises:
            OSError: somebody sits at this address, or there are no such sockets.
        """
        self._kept: OrderedDict[bytes, Visit] = OrderedDict()
        self._socket = local_socket()
        try:
            self._socket.bind(_address(public_key))
            self._socket.listen(_MOST_KEPT)
        except BaseException:
            self._socket.close()
            raise

    def take(self, token: bytes) -> Visit | None:
        """The visitor with this token, now the caller's; None where there is none."""
        for _ in range(_MOST_KEPT):
            try:
                visitor, _address_of_nobody = self._socket.accept()
            except OSError:
                break
            if not self._is_kept(visitor):
                visitor.close()
        return self._kept.pop(token, None)

    def _is_kept(self, visitor: socket.socket) -> bool:
        """Who is announced has said all of this before, so nobody is waited for."""
        visitor.setblocking(False)
        if not _is_own(visitor):
            return False
        try:
            token, ancillary, _, _ = visitor.recvmsg(
                TOKEN_BYTES + 1, socket.CMSG_LEN(4), socket.MSG_CMSG_CLOEXEC
            )
        except OSError:
            return False
        rights = [data for level, kind, data in ancillary if (level, kind) == _RIGHTS and len(data) == 4]
        if not rights:
            return False
        self._drop(self._kept.pop(token, None))
        self._kept[token] = Visit(visitor, *array.array("i", rights[0]))
        while len(self._kept) > _MOST_KEPT:
            self._drop(self._kept.popitem(last=False)[1])
        return True

    @staticmethod
    def _drop(visit: Visit | None) -> None:
        if visit is not None:
            visit.close()

    def close(self) -> None:
        """Sends away whom nobody asked for, too."""
        self._socket.close()
        while self._kept:
            self._drop(self._kept.popitem()[1])


def visit(public_key: str, token: bytes, descriptor: int) -> socket.socket | None:
    """Goes to the doorway of the host with this key and leaves a descriptor there. Never blocks.

    Returns:
        The socket to that host; None where no host of this user listens there, or its door is crowded.
    """
    try:
        visitor = local_socket()
    except OSError:  # no descriptor is free
        return None
    try:
        visitor.connect(_address(public_key))
        rights = (*_RIGHTS, array.array("i", [descriptor]))
        if _is_own(visitor) and visitor.sendmsg([token], [rights]) == len(token):
            return visitor
    except OSError:
        pass  # as if nobody were there
    visitor.close()
    return None


_RIGHTS: Final = (socket.SOL_SOCKET, socket.SCM_RIGHTS)


def _address(public_key: str) -> bytes:
    return b"\0partita " + public_key.encode("ascii")


def _is_own(connection: socket.socket) -> bool:
    """Whether the other end is a process of the same user, says the kernel."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(found)
    return bool(user == os.geteuid())
