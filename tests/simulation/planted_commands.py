"""Faults of the records of shards that execute commands, and of copies of one moment."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from partita.engine.protocol.batch_messages import EvaluationSum
from partita.engine.protocol.copy_messages import RecordKept
from partita.engine.protocol.durability import HeldReplies, Keep
from partita.engine.protocol.durability.chain import Chain
from partita.engine.protocol.durability.snapshots import SnapshotBackup
from partita.engine.protocol.events import Send
from partita.engine.protocol.shard_effects import TakeCopy, WriteVector
from partita.engine.protocol.sum_then_continue import SumThenContinue
from partita.engine.protocol.work_scheduler import WorkScheduler
from partita.engine.testing import Fault
from partita.engine.testing.log import LogFolder
from partita.engine.testing.shards import ShardBody
from tests.simulation.outcomes import PlantedFaults


def at_once(method: Any, held: Any, effects: Any, number: int) -> Any:
    return [*effects]


def without_sums(method: Any, policy: Any, record: Any) -> Any:
    return [effect for effect in method(policy, record) if not isinstance(effect, WriteVector)]


def sums_are_not_kept(method: Any, policy: Any, payloads: Any) -> Any:
    effects = method(policy, payloads)
    policy.version -= sum(isinstance(effect, Keep) for effect in effects)
    return [effect for effect in effects if not isinstance(effect, Keep)]


def sums_of_the_command_before(method: Any, policy: Any, message: Any, payload: Any = None) -> Any:
    if isinstance(message, EvaluationSum):
        payload, policy._before = getattr(policy, "_before", payload), payload
    return method(policy, message, payload)


def the_command_counts_as_in_its_file(method: Any, policy: Any, checkpoint: int) -> Any:
    persist = method(policy, checkpoint)
    return replace(persist, version=persist.version + 1)


def the_command_before_is_unknown(method: Any, policy: Any, checkpoint: int) -> Any:
    return replace(method(policy, checkpoint), seen={"coordinator": (0, 0)})


def the_process_before_counts(method: Any, scheduler: Any, ranges: Any, since: float = 0.0) -> Any:
    return method(scheduler, ranges)


def any_command_follows(method: Any, policy: Any, command: Any) -> Any:
    if command.number > policy.number and not policy.busy:
        policy.number, policy._last = command.number - 1, None
    return method(policy, command)


def not_kept(method: Any, body: Any, effect: Any) -> Any:
    done = method(body, effect)
    if isinstance(effect, TakeCopy):
        body.copied_vectors = body.vectors
    return done


def without_scalars(method: Any, policy: Any) -> Any:
    counts = method(policy)
    return msgspec.structs.replace(counts, command=msgspec.structs.replace(counts.command, scalars=()))


def without_the_result(method: Any, policy: Any) -> Any:
    counts = method(policy)
    return msgspec.structs.replace(counts, command=msgspec.structs.replace(counts.command, is_done=False))


def one_record_too_few(method: Any, policy: Any) -> Any:
    counts = method(policy)
    return msgspec.structs.replace(counts, version=max(0, counts.version - 1))


def carried_out_in_half_a_copy(method: Any, backup: Any) -> Any:
    whole, backup.is_whole = backup.is_whole, backup.policy is not None
    try:
        return method(backup)
    finally:
        backup.is_whole = whole


def confirmed_and_dropped(method: Any, backup: Any, event: Any, message: Any, now: float) -> Any:
    if message.number % 3 == 0 and message.number == backup._newest + 1:
        return [Send(backup.shard, RecordKept(message.number))]
    return method(backup, event, message, now)


def copied_while_it_changes(method: Any, policy: Any) -> bool:
    return True


def takes_all_for_kept(method: Any, chain: Any, number: int, now: float) -> Any:
    return method(chain, max([number, *chain._under_way]), now)


def log(name: str, reported: str, *faults: Fault, at: int = 0, seeds: int = 600) -> PlantedFaults:
    return PlantedFaults(f"commands: {name}", reported, faults, "sandblaster_log", at, seeds)


def copy(name: str, reported: str, *faults: Fault, at: int = 0, seeds: int = 600) -> PlantedFaults:
    return PlantedFaults(f"copies: {name}", reported, faults, "sandblaster_replicated", at, seeds)


FAULTS = [
    log("answered before the record is kept", "D1 I6", Fault(HeldReplies, "hold", at_once), at=40),
    log("replayed without sums", "I5 I6 I7 validate", Fault(SumThenContinue, "replay", without_sums), at=1),
    log(
        "sums are not kept",
        "D1 I5 I6 I7 validate",
        Fault(SumThenContinue, "sums_taken", sums_are_not_kept),
        at=1,
    ),
    log(
        "sums of the command before",
        "I5 I6 I7",
        Fault(SumThenContinue, "_kept", sums_of_the_command_before),
        at=1,
    ),
    log(
        "the command counts as in its file",
        "D1 I5 I6 I7 validate",
        Fault(SumThenContinue, "persist", the_command_counts_as_in_its_file),
        at=1,
    ),
    log(
        "the command before a file is unknown",
        "D1",
        Fault(SumThenContinue, "persist", the_command_before_is_unknown),
        at=99,
    ),
    log("the log is not replayed", "D1", Fault(LogFolder, "above", lambda method, folder, version: []), at=1),
    log(
        "any command follows a lost log",
        "I5 I6 I7 validate",
        Fault(LogFolder, "above", lambda method, folder, version: []),
        Fault(SumThenContinue, "_command", any_command_follows),
        at=1,
    ),
    log(
        "a process that has died has the units",
        "I8",
        Fault(WorkScheduler, "missing", the_process_before_counts),
        at=15,
    ),
    copy("answered before the backup has it", "D1 validate", Fault(HeldReplies, "hold", at_once), at=76),
    copy("all records count as kept", "D1 validate", Fault(Chain, "take", takes_all_for_kept), at=384),
    copy("of several moments", "I5 I6 I7 S5 validate", Fault(ShardBody, "_perform", not_kept), at=6),
    copy("without scalars", "I6 I7 S5 validate", Fault(SumThenContinue, "counts", without_scalars), at=14),
    copy("without the result", "I6 I8 validate", Fault(SumThenContinue, "counts", without_the_result), at=14),
    copy(
        "one record too few",
        "D1 I7 I8 S5 validate",
        Fault(SumThenContinue, "counts", one_record_too_few),
        at=0,
    ),
    copy(
        "records in half a copy",
        "I5 I6 I7 validate",
        Fault(SnapshotBackup, "_carry_out", carried_out_in_half_a_copy),
        at=0,
    ),
    copy(
        "a record is confirmed and dropped",
        "I6 D1 I7 I8 S5 validate",
        Fault(SnapshotBackup, "_record", confirmed_and_dropped),
        at=14,
    ),
    copy(
        "while it changes",
        "I5 I6 I7 S5 validate",
        Fault(SumThenContinue, "may_be_copied", copied_while_it_changes),
        at=17,
    ),
]
