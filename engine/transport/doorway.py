"""Hands descriptors from one host to another of the same user, over Unix sockets that are no files.

A doorway's address is an abstract one: it is known by the host's public key, belongs to the network
namespace, and vanishes with the process, however that ends. Nobody needs to be trusted for knowing it: both
sides ask the kernel which user the other is, and what is handed over counts only with a token that the
authenticated connection has brought.
"""

from __future__ import annotations

import array
import os
import socket
import struct
from collections import OrderedDict
from typing import Final

from partita.engine.transport.sockets import local_socket

TOKEN_BYTES: Final = 16

_MOST_KEPT: Final = 64  # handed over and not announced yet; the oldest makes room
_CREDENTIALS: Final = struct.Struct("iii")  # process, user, group


class Doorway:
    """Where other hosts leave descriptors for this one. Strangers cost nothing before `take` is called."""

    def __init__(self, public_key: str) -> None:
        """Listens.

        Args:
            public_key: of this host.

        Raises:
            OSError: somebody sits at this address, or there are no such sockets.
        """
        self._kept: OrderedDict[bytes, int] = OrderedDict()
        self._socket = local_socket()
        try:
            self._socket.bind(_address(public_key))
            self._socket.listen(_MOST_KEPT)
        except BaseException:
            self._socket.close()
            raise

    def take(self, token: bytes) -> int | None:
        """The descriptor that was left with this token, now the caller's; None where there is none."""
        for _ in range(_MOST_KEPT):
            try:
                visitor, _address_of_nobody = self._socket.accept()
            except OSError:
                break
            with visitor:
                self._keep(visitor)
        return self._kept.pop(token, None)

    def _keep(self, visitor: socket.socket) -> None:
        """Who announces a descriptor has left it before, so nobody is waited for."""
        visitor.setblocking(False)
        if not _is_own(visitor):
            return
        try:
            token, ancillary, _, _ = visitor.recvmsg(
                TOKEN_BYTES + 1, socket.CMSG_LEN(4), socket.MSG_CMSG_CLOEXEC
            )
        except OSError:
            return
        for level, kind, data in ancillary:
            if (level, kind, len(data)) == (socket.SOL_SOCKET, socket.SCM_RIGHTS, 4):
                (descriptor,) = array.array("i", data)
                self._drop(self._kept.pop(token, None))
                self._kept[token] = descriptor
        while len(self._kept) > _MOST_KEPT:
            self._drop(self._kept.popitem(last=False)[1])

    @staticmethod
    def _drop(descriptor: int | None) -> None:
        if descriptor is not None:
            os.close(descriptor)

    def close(self) -> None:
        """Closes what nobody asked for, too."""
        self._socket.close()
        while self._kept:
            self._drop(self._kept.popitem()[1])


def hand_over(descriptor: int, token: bytes, public_key: str) -> bool:
    """Leaves a descriptor at the doorway of the host with this key. Never blocks.

    Returns:
        Whether it lies there: False where no host of this user listens there, or its door is crowded.
    """
    with local_socket() as visitor:
        try:
            visitor.connect(_address(public_key))
            if not _is_own(visitor):
                return False
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))
            return visitor.sendmsg([token], [rights]) == len(token)
        except OSError:
            return False


def _address(public_key: str) -> bytes:
    return b"\0partita " + public_key.encode("ascii")


def _is_own(connection: socket.socket) -> bool:
    """Whether the other end is a process of the same user, says the kernel."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(found)
    return bool(user == os.geteuid())
