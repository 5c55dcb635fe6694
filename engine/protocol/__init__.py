"""Conversations: what hosts say to one another, and the machines that decide what follows. No I/O, no arrays.

`messages` is the closed union of everything that travels; `events` holds the words that all machines share.
Each machine is `receive(event, now) -> effects` with `validate()`: `part` plays a program, `replica` is
Downpour as a part speaks it and `portion_client` Sandblaster, `shard` applies each push once and
`vector_shard` does a batch method's operations (`evaluation`, `sum_tree`), under a `lease`; `membership` says
who is alive. `supervision` is what every coordinator does, with the help of `roster` (who there is), `rounds`
(checkpoints) and `orders` (what it asks of its interpreter): `coordinator` is Downpour's, `sandblaster` that
of batch methods, with a `method_at_work`, `hand_out` (who computes what, of what is `waiting`) and `recovery`
(what is done again). `commands` is what a method asks of the shards' vectors. `failure` makes a report of
whatever was raised; `stuck` notices who waits for whom for long, and `unanswered` keeps what they say of
it; `names` says what hosts are called, `verbs` who may say what to whom; `clocks` is how far apart two hosts'
clocks are, `repeats` when what was not answered is sent again. This folder imports none of its neighbours.
"""

from partita.engine.protocol.downpour_client import DownpourClient
from partita.engine.protocol.downpour_coordinator import DownpourCoordinator
from partita.engine.protocol.instruction_scheduler import InstructionScheduler
from partita.engine.protocol.membership import Membership
from partita.engine.protocol.messages import MalformedMessage, Message, decode, encode
from partita.engine.protocol.names import Topology
from partita.engine.protocol.parameter_shard import ParameterShard
from partita.engine.protocol.sandblaster_client import SandblasterClient
from partita.engine.protocol.sandblaster_coordinator import SandblasterCoordinator
from partita.engine.protocol.vector_shard import VectorShard

__all__ = [
    "DownpourClient",
    "DownpourCoordinator",
    "InstructionScheduler",
    "MalformedMessage",
    "Membership",
    "Message",
    "ParameterShard",
    "SandblasterClient",
    "SandblasterCoordinator",
    "Topology",
    "VectorShard",
    "decode",
    "encode",
]
