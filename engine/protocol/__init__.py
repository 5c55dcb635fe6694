"""Conversations: what hosts say to one another, and the machines that decide what follows. No I/O, no arrays.

`messages` is the closed union of everything that travels; `events` holds the words that all machines share.
Each machine is `receive(event, now) -> effects` with `validate()`: `part` plays a program, `replica` is
Downpour as a part speaks it, `shard` applies each push once, `vector_shard` does each command of a batch
method once (`evaluation` is what has come of one, added up in the order of a `sum_tree`), both under a
`lease`; `membership` says who is alive, and `coordinator` supervises a run with the help of `roster` (who
there is), `rounds` (checkpoints) and `orders` (what it asks of its interpreter). `names` says what hosts are
called, `verbs` who may say what to whom; `clocks` is how far apart two hosts' clocks are. `commands` is what
a batch method asks of the shards' vectors. This folder imports none of its neighbours.
"""

from partita.engine.protocol.coordinator import Coordinator
from partita.engine.protocol.membership import Membership
from partita.engine.protocol.messages import MalformedMessage, Message, decode, encode
from partita.engine.protocol.names import Topology
from partita.engine.protocol.part import PartMachine
from partita.engine.protocol.replica import DownpourClient
from partita.engine.protocol.shard import ShardMachine
from partita.engine.protocol.vector_shard import VectorShard

__all__ = [
    "Coordinator",
    "DownpourClient",
    "MalformedMessage",
    "Membership",
    "Message",
    "PartMachine",
    "ShardMachine",
    "Topology",
    "VectorShard",
    "decode",
    "encode",
]
