"""The descriptors of stream links in a mailbox's poll.

Sockets open, fill up and close on any thread that sends; the poll belongs to the owner of the mailbox, who
brings it up to date here.
"""

from __future__ import annotations

import zmq

from partita.engine.transport.outbound import OutboundConnection
from partita.engine.transport.stream_receiver import StreamReceiver


class StreamWatch:
    """Registers what stream links wait for. Any thread that holds the mailbox's lock may call `note`.

    Attributes:
        changed: connections whose link waits for something else, until the next `update`.
        connecting: links that begin to connect, by their descriptors.
    """

    def __init__(self, poller: zmq.Poller) -> None:
        self._poller = poller
        self.changed: set[OutboundConnection] = set()
        self._watched: dict[OutboundConnection, dict[int, int]] = {}
        self._by_descriptor: dict[int, OutboundConnection] = {}
        self.connecting: dict[int, StreamReceiver] = {}

    def note(self, outbound: OutboundConnection) -> None:
        """Remembers that a connection's link waits for something else."""
        self.changed.add(outbound)

    def forget(self, outbound: OutboundConnection) -> None:
        """Unregisters a connection before it is closed."""
        self._register(outbound, {})

    def update(self) -> None:
        """Registers what links wait for now."""
        changed, self.changed = self.changed, set()
        for outbound in changed:
            link = outbound.stream_link
            wanted = {} if link is None else dict(link.watched)
            flags = {fd: int(zmq.POLLIN | zmq.POLLOUT if full else zmq.POLLIN) for fd, full in wanted.items()}
            self._register(outbound, flags)

    def _register(self, outbound: OutboundConnection, flags: dict[int, int]) -> None:
        before = self._watched.get(outbound, {})
        for descriptor in before.keys() - flags.keys():
            if self._by_descriptor.get(descriptor) is outbound:
                del self._by_descriptor[descriptor]
                self._poller.unregister(descriptor)
        for descriptor, wanted in flags.items():
            if before.get(descriptor) != wanted or descriptor not in self._by_descriptor:
                self._poller.register(descriptor, wanted)
                self._by_descriptor[descriptor] = outbound
        if flags:
            self._watched[outbound] = flags
        else:
            self._watched.pop(outbound, None)

    def __contains__(self, descriptor: object) -> bool:
        return descriptor in self._by_descriptor

    def __getitem__(self, descriptor: object) -> OutboundConnection:
        return self._by_descriptor[descriptor]  # type: ignore[index]

    def connect(self, link: StreamReceiver) -> None:
        """Registers a link that begins to connect."""
        self.connecting[link.channel] = link
        self._poller.register(link.channel, zmq.POLLIN | zmq.POLLOUT)

    def look(self, descriptor: object) -> None:
        """Stops to wait until a link is connected, once it is, or has ended."""
        link = self.connecting.get(descriptor)  # type: ignore[call-overload]
        if link is not None and not link.is_connecting:
            del self.connecting[descriptor]  # type: ignore[arg-type]
            if link.is_alive:
                self._poller.modify(link.channel, zmq.POLLIN)
