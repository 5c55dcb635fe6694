"""Links that peers offer to a mailbox: memory of peers on this machine, and streams from any.

A link's channel lies in the mailbox's poll, so all of this belongs to the owner of the mailbox.
"""

from __future__ import annotations

import contextlib

import zmq

from partita.engine.transport.reassembly import LinkRefused
from partita.engine.transport.rendezvous import Rendezvous
from partita.engine.transport.seal import CAN_SEAL
from partita.engine.transport.shared_link import SharedLinkReceiver
from partita.engine.transport.shared_region import RegionReader
from partita.engine.transport.stream_receiver import StreamReceiver
from partita.engine.transport.stream_watch import StreamWatch
from partita.engine.transport.wire import LinkOffer, RegionOffer, StreamOffer


class InboundLinks:
    """Opens links, and knows the sender of each by the link's channel.

    Args:
        key: public key of this host.
        poller: the mailbox's poll, where channels are registered.
        streams: where stream links register while they connect.
        shares_memory: peers of this machine may share memory with this host.
        encrypts: stream links are encrypted.
        max_payload: largest payload that is accepted (bytes).

    Attributes:
        rendezvous: where peers of this machine hand over descriptors; None if no memory is shared.
        frame: the frame of the inbox that is served; its connection gives the address of a stream's sender.
    """

    def __init__(
        self,
        key: str,
        poller: zmq.Poller,
        streams: StreamWatch,
        *,
        shares_memory: bool,
        encrypts: bool,
        max_payload: int,
    ) -> None:
        self._poller, self._streams = poller, streams
        self._encrypts, self._max_payload = encrypts, max_payload
        self._keys: dict[int, str] = {}  # of senders, by their links' channels
        self.frame: zmq.Frame | None = None
        self.rendezvous: Rendezvous | None = None
        if shares_memory:
            with contextlib.suppress(OSError):  # then no host shares memory with this one
                self.rendezvous = Rendezvous(key)

    def sender_at(self, channel: object) -> str | None:
        """Returns the key of the sender whose link has this channel."""
        return self._keys.get(channel)  # type: ignore[call-overload, no-any-return]

    def accept_link(self, key: str, offer: LinkOffer) -> SharedLinkReceiver | None:
        """Opens the shared-memory link that a sender of this machine has offered at the rendezvous."""
        connection = None if self.rendezvous is None else self.rendezvous.take(offer.token)
        if connection is None:
            return None
        try:
            link = SharedLinkReceiver(connection, offer.n_bytes, on_close=self._forget)
        except OSError:
            return None
        self._keys[link.channel] = key
        self._poller.register(link.channel, zmq.POLLIN)
        return link

    def accept_region(self, offer: RegionOffer) -> RegionReader | None:
        """Maps the memory that a sender of this machine has passed at the rendezvous."""
        connection = None if self.rendezvous is None else self.rendezvous.take(offer.token)
        if connection is None:
            return None
        try:
            return RegionReader(connection.descriptor, offer.n_bytes)
        except OSError:
            return None
        finally:
            connection.close()

    def accept_stream(self, key: str, offer: StreamOffer) -> StreamReceiver | None:
        """Begins to connect to a sender that has offered a stream link.

        Raises:
            LinkRefused: one side encrypts payloads, and the other does not.
        """
        if offer.clear == self._encrypts:
            theirs, ours = ("in the clear", "encrypted") if offer.clear else ("encrypted", "in the clear")
            raise LinkRefused(
                f"it offers payloads {theirs}, and this host was told that they are {ours}; "
                "give both the same encrypt_payloads (until then, CURVE encrypts them)"
            )
        if not CAN_SEAL or self.frame is None:
            return None
        try:
            source = str(self.frame.get("Peer-Address"))
            link = StreamReceiver(
                "127.0.0.1" if source.startswith("127.") else source,
                offer,
                max_payload=self._max_payload,
                on_close=self._forget,
            )
        except (OSError, zmq.ZMQError):
            return None
        self._keys[link.channel] = key
        self._streams.connect(link)
        return link

    def sweep(self) -> None:
        """Drops what peers handed over and never offered."""
        if self.rendezvous is not None:
            self.rendezvous.sweep()

    def close(self) -> None:
        """Ends the rendezvous; links are closed by who accepted them."""
        if self.rendezvous is not None:
            self.rendezvous.close()

    def _forget(self, channel: int) -> None:
        del self._keys[channel]
        self._poller.unregister(channel)
