"""Stream link between hosts of two machines: a TCP connection whose bytes land in the payload's memory.

ZeroMQ copies and encrypts a payload frame by frame on a thread of its own. Here the owner of the mailbox
seals it record by record, see `seal`, and the receiver reads each record from the kernel and opens it into
its place. The sender listens for the receiver alone: the port, a token and the key are in an offer on the
authenticated connection. Once the receiver has connected, all messages of the sender take the link, in order:

    [4 bytes: length] [sealed `MessageStart`]  [record of the payload] [record] ...

Where both hosts were told so, payloads are not sealed ("clear"); headers, small payloads and tasks always
are.
Nothing here blocks. A link that breaks is closed, and what it lost takes the encrypted socket again.
"""

from __future__ import annotations

from typing import Final

RECORD_BYTES: Final = 1 << 18
"""Bytes of every record of a payload but the last, which are in a core's cache when they are sent."""

LENGTH_BYTES: Final = 4
SEALED, CLEAR = 0, 1
"""`MessageStart.place` of a payload on a stream link."""
