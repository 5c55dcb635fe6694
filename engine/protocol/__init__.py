"""Protocols as pure state machines: `receive(event, now) -> effects`, with `validate()`. No I/O, no arrays.

- Shared: `messages` (the closed union of what travels, with `message_base`, `batch_messages`,
  `checkpoint_messages`, `copy_messages`, `replica_messages`, `session_messages` and
  `validation_messages`), `events` (events and effects of all machines), `names` (of hosts), `permissions`
  (who may send what), `conduct` (who is cut off), `retry`, `failure` (error reports), `clocks`, and
  `watch_messages` of a run that is watched (by the coordinator's `watching`).
- Every host: `host` is its machine, and the base of the role machines that plug into it.
- A part: `part` runs a driver's program, whose generator yields `actions`, each with its `carrier`, on
  vectors of which a driver may have some of its own (`kept_vector`). Work comes as `leases`
  (`leased_work`), unit by unit (`assigned_work`), at its user's request (`requested_work`), or from
  `views`, which say who does which steps together (`joined_work`, with `program_saves`, the `loss_scale`
  of float16, and the `teaching` of predictions). A `link` to each
  shard exchanges with it, as `parameter_links` or `point_links`, and `program_exchanges` (of the
  `program_kinds`, with the places of `program_messages` that compressors make) with other replicas.
  `instruction_scheduler` runs the steps, `stall_detector` reports long waits, `program_reports` what is
  done, and `program_effects` are what a body is asked for. Beside its program, a part evaluates validation
  data (`part_validation`).
- `exchange/` has the exchanges of numbers among replicas.
- A `shard` (events and effects: `shard_effects`) works under a lease, by a policy: `apply_on_arrival` applies
  every push once (compressed ones have a `message_form`, and an `unsent_book` collects for files what they
  lacked), and `merge_on_quorum` those of several replicas
  together (as `merging` says); `sum_then_continue` executes a batch method's
  `commands` and sums gradients (`evaluation`, `sum_tree`). `staleness` is what is done about
  stale gradients. `durability/` has what a shard promises: its records, and the replies that wait for them.
- The host `files`: a `file_server` for the `file_client` of each host on another machine, by `file_messages`.
- The coordinator: one `coordinator` runs the program of any driver (`journaled_plan`) over `supervision`
  (with `checkpointing`), `elastic` (replicas leave and join) and `host_lifecycle`, with
  `coordinator_effects`, `membership` (liveness), `host_registry`, `directories` (addresses, sent as
  changes), `seats` (who takes part), `wait_graph`, and the `validation` under way. It has one `work_mode`:
  `leased_mode`, `joined_mode` (with `view_change`), or `evaluation_mode` (with a `command_tracker`, a
  `work_scheduler` for as many replicas as are `worthwhile`, and `recovery`); a `work_book` has the units of
  each mode, as `ranges` (a `joined_book` those of views; `held_units` are those of a run that goes on). In a
  session it is `request_mode`, in which no host is started again, and where replicas share minibatches,
  `minibatch_mode`.

This folder imports none of its neighbours.
"""

from typing import TYPE_CHECKING

from partita.engine.lazily import names_of

if TYPE_CHECKING:
    from partita.engine.protocol.apply_on_arrival import ApplyOnArrival
    from partita.engine.protocol.coordinator import Coordinator
    from partita.engine.protocol.evaluation_mode import EvaluationMode
    from partita.engine.protocol.instruction_scheduler import InstructionScheduler
    from partita.engine.protocol.joined_mode import JoinedMode
    from partita.engine.protocol.leased_mode import LeasedMode
    from partita.engine.protocol.membership import Membership
    from partita.engine.protocol.messages import MalformedMessage, Message, decode, encode
    from partita.engine.protocol.names import Topology
    from partita.engine.protocol.parameter_links import ParameterLinks
    from partita.engine.protocol.part import Part
    from partita.engine.protocol.point_links import PointLinks
    from partita.engine.protocol.shard import Shard
    from partita.engine.protocol.shard_effects import ShardRanges
    from partita.engine.protocol.sum_then_continue import SumThenContinue
else:
    __getattr__ = names_of(__name__, __file__)

__all__ = [
    "ApplyOnArrival",
    "Coordinator",
    "EvaluationMode",
    "InstructionScheduler",
    "JoinedMode",
    "LeasedMode",
    "MalformedMessage",
    "Membership",
    "Message",
    "ParameterLinks",
    "Part",
    "PointLinks",
    "Shard",
    "ShardRanges",
    "SumThenContinue",
    "Topology",
    "decode",
    "encode",
]
