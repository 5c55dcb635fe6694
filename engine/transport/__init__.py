"""Transport of messages between hosts.

`mailbox` is the interface of the runtime; `zeromq` implements it with sockets, `in_process` with queues
between threads, and `simulated` draws the faults of a network on a virtual clock. Common to both mailboxes:
`wire` (format), `inbound` and `reassembly` (receiving), `payload` and `counters`. Only for ZeroMQ: `sockets`
(the one factory), `authenticator`, `keys`, `outbound` with the `backlogs` of several, `inbound_links`, and
`connection_guard` with `admission`. Hosts of one
machine meet at a `rendezvous` and send payloads by a `shared_link`, whose memory is a `ring_buffer` or a
`shared_region`.
Those of several machines send by a `stream_link` (`stream_sender` and `stream_receiver`), whose records a
`seal` encrypts: a `stream_watch` polls them, and a `buffer_pool` keeps their memory. `encryption` is a run's
setting.

Pools of workers have no mailboxes: who has an authorised key asks at a `door`, by a `visit`. `keyring` is a
folder of keys, and `addresses` says what can be reached from where.
"""

from typing import TYPE_CHECKING

from partita.engine.lazily import names_of

if TYPE_CHECKING:
    from partita.engine.transport.counters import Count, Counters
    from partita.engine.transport.encryption import Encryption
    from partita.engine.transport.in_process import InProcessMailbox, InProcessNetwork
    from partita.engine.transport.keyring import Keyring
    from partita.engine.transport.keys import (
        InsecureKeyFile,
        KeyPair,
        MalformedKeyFile,
        read_keys,
        write_keys,
    )
    from partita.engine.transport.mailbox import MAX_PAYLOAD, Mailbox, MailboxClosed, PeerStalled, UnknownPeer
    from partita.engine.transport.payload import Buffer, Payload, PayloadLike, Reading, Steady, Versioned
    from partita.engine.transport.sockets import LOOPBACK, EndpointUnavailable
    from partita.engine.transport.zeromq import ZmqMailbox
else:
    __getattr__ = names_of(__name__, __file__)

__all__ = [
    "LOOPBACK",
    "MAX_PAYLOAD",
    "Buffer",
    "Count",
    "Counters",
    "Encryption",
    "EndpointUnavailable",
    "InProcessMailbox",
    "InProcessNetwork",
    "InsecureKeyFile",
    "KeyPair",
    "Keyring",
    "Mailbox",
    "MailboxClosed",
    "MalformedKeyFile",
    "Payload",
    "PayloadLike",
    "PeerStalled",
    "Reading",
    "Steady",
    "UnknownPeer",
    "Versioned",
    "ZmqMailbox",
    "read_keys",
    "write_keys",
]
