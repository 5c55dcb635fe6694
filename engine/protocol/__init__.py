"""Protocols as pure state machines: `receive(event, now) -> effects`, with `validate()`. No I/O, no arrays.

- Shared: `messages` (the closed union of what travels, with `message_base`, `batch_messages` and
  `replica_messages`), `events` (events and effects of all machines), `names` (of hosts), `permissions` (who
  may send what), `retry`, `failure` (error reports), `clocks`.
- Every host: `host` is its machine, and the base of the role machines that plug into it.
- A part (`part`): `instruction_scheduler` runs the steps, a `link` to each shard exchanges with it,
  `stall_detector` reports long waits. `linked_part` runs a driver's program over `parameter_links`;
  `sandblaster_part` runs the assignments of a `sandblaster_client`.
- A driver's program: `actions` are what its generators yield, `program` is the machine of a part that runs
  them (with `program_exchanges`, `program_reports` and `program_saves`), `program_effects` what it asks of
  its body, and `views` say who does which steps together.
- `exchange/` has the exchanges of numbers among replicas.
- A `shard` (events and effects: `shard_effects`) works under a lease, by a policy: `apply_on_arrival` applies
  every push once; `sum_then_continue` executes a batch method's `commands` and sums gradients (`evaluation`,
  `sum_tree`).
- The coordinator: one `coordinator` runs the program of any driver (`journaled_plan`) over `supervision`
  (with `checkpointing`), `elastic` (replicas leave and join) and `host_lifecycle`, with
  `coordinator_effects`, `membership` (liveness), `host_registry`, `directories` (addresses, sent as
  changes), `seats` (who takes part) and `wait_graph`. It has one `work_mode`: `leased_mode` (with `leases`),
  `joined_mode` (with `view_change`), or `evaluation_mode` (with a `command_tracker`, a `work_scheduler` over
  a `work_queue`, and `recovery`). `session_coordinator` supervises sessions, in which nothing is started
  again.

This folder imports none of its neighbours.
"""

from partita.engine.protocol.apply_on_arrival import ApplyOnArrival
from partita.engine.protocol.coordinator import Coordinator
from partita.engine.protocol.evaluation_mode import EvaluationMode
from partita.engine.protocol.instruction_scheduler import InstructionScheduler
from partita.engine.protocol.joined_mode import JoinedMode
from partita.engine.protocol.leased_mode import LeasedMode
from partita.engine.protocol.linked_part import LinkedPart
from partita.engine.protocol.membership import Membership
from partita.engine.protocol.messages import MalformedMessage, Message, decode, encode
from partita.engine.protocol.names import Topology
from partita.engine.protocol.parameter_links import ParameterLinks
from partita.engine.protocol.sandblaster_client import SandblasterClient
from partita.engine.protocol.shard import Shard
from partita.engine.protocol.shard_effects import ShardRanges
from partita.engine.protocol.sum_then_continue import SumThenContinue

__all__ = [
    "ApplyOnArrival",
    "Coordinator",
    "EvaluationMode",
    "InstructionScheduler",
    "JoinedMode",
    "LeasedMode",
    "LinkedPart",
    "MalformedMessage",
    "Membership",
    "Message",
    "ParameterLinks",
    "SandblasterClient",
    "Shard",
    "ShardRanges",
    "SumThenContinue",
    "Topology",
    "decode",
    "encode",
]
