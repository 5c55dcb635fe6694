"""The connections of a mailbox whose messages wait, and their sockets in its poll."""

from __future__ import annotations

import zmq

from partita.engine.transport.outbound import OutboundConnection


class Backlogs:
    """Connections with a backlog.

    All methods are called under the mailbox's lock; `serve` and `forget` by its owner, whose the poll is.
    """

    def __init__(self, poller: zmq.Poller) -> None:
        self._poller = poller
        self._waiting: set[OutboundConnection] = set()
        self._polled: set[OutboundConnection] = set()  # those whose sockets are in the poll

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def note(self, outbound: OutboundConnection) -> None:
        """Remembers a connection if it has a backlog."""
        if outbound.has_backlog:
            self._waiting.add(outbound)

    def serve(self) -> None:
        """Flushes backlogs, and polls the sockets that do not take all of theirs."""
        for outbound in list(self._waiting):
            outbound.flush()
            if not outbound.has_backlog:
                self.forget(outbound)
            elif outbound.has_queue and outbound not in self._polled:
                self._polled.add(outbound)
                self._poller.register(outbound.socket, zmq.POLLOUT)

    def forget(self, outbound: OutboundConnection) -> None:
        """Forgets a connection that has no backlog, or is about to be closed."""
        self._waiting.discard(outbound)
        if outbound in self._polled:
            self._polled.remove(outbound)
            self._poller.unregister(outbound.socket)
