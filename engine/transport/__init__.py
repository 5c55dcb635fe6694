"""How hosts talk: mailboxes, and what lies between two of them.

`mailbox` is the interface that the runtime knows. `zeromq` is the real one: it stands on `sockets` (the one
factory of sockets), `authenticator` (who may get in), `keys`, `outgoing` (the way to a peer, on which what
was not acknowledged is `kept`) and `connections` (which are watched, and cut where they cost too much).
`in_process` is its twin for threads, `simulated` a network with faults on a virtual clock. The first two
share `wire` (what a message looks like), `assembly` and `senders` (putting it together again, sender by
sender), `payload` and `counters`. Between hosts of one machine, `neighbour` puts large payloads into a `ring`
of shared memory, whose descriptor goes through a `doorway`.
"""

from partita.engine.transport.counters import Count, Counters
from partita.engine.transport.in_process import InProcessMailbox, InProcessNetwork
from partita.engine.transport.keys import InsecureKeyFile, KeyPair, MalformedKeyFile, read_keys, write_keys
from partita.engine.transport.mailbox import MAX_PAYLOAD, Mailbox, MailboxClosed, PeerStalled, UnknownPeer
from partita.engine.transport.payload import Buffer, Payload, PayloadLike
from partita.engine.transport.sockets import LOOPBACK, EndpointUnavailable
from partita.engine.transport.zeromq import ZmqMailbox

__all__ = [
    "LOOPBACK",
    "MAX_PAYLOAD",
    "Buffer",
    "Count",
    "Counters",
    "EndpointUnavailable",
    "InProcessMailbox",
    "InProcessNetwork",
    "InsecureKeyFile",
    "KeyPair",
    "Mailbox",
    "MailboxClosed",
    "MalformedKeyFile",
    "Payload",
    "PayloadLike",
    "PeerStalled",
    "UnknownPeer",
    "ZmqMailbox",
    "read_keys",
    "write_keys",
]
