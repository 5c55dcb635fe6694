"""Faults of shards with a backup: what was acknowledged is gone when one of the two copies dies."""

from __future__ import annotations

from typing import Any

import msgspec

from partita.engine.protocol import ApplyOnArrival
from partita.engine.protocol.copy_messages import RecordKept
from partita.engine.protocol.durability import HeldReplies
from partita.engine.protocol.durability.backup import Backup
from partita.engine.protocol.durability.chain import Chain
from partita.engine.protocol.durability.replicated import ReplicatedShard
from partita.engine.protocol.events import Send
from partita.engine.protocol.host_registry import HostRegistry
from partita.engine.protocol.names import backup_index
from partita.engine.protocol.shard_effects import ApplyGradient
from partita.engine.testing import Fault
from partita.engine.testing.host import SimulatedHost
from tests.simulation.outcomes import PlantedFaults


def at_once(method: Any, held: Any, effects: Any, number: int) -> Any:
    return [*effects]


def confirmed_before_it_is_there(method: Any, backup: Any, event: Any, message: Any, now: float) -> Any:
    effects = method(backup, event, message, now)
    early = Send(backup.shard, RecordKept(message.number))
    return effects or [early]


def confirmed_and_not_applied(method: Any, backup: Any, event: Any, message: Any, now: float) -> Any:
    effects = method(backup, event, message, now)
    return [e for e in effects if not isinstance(e, ApplyGradient)] if message.number % 3 == 0 else effects


def takes_all_for_kept(method: Any, chain: Any, number: int, now: float) -> Any:
    return method(chain, max([number, *chain._under_way]), now)


def alone_with_a_backup(method: Any, shard: Any, effects: Any, now: float) -> Any:
    return shard._all_kept(method(shard, effects, now))


def misses_what_comes_meanwhile(method: Any, chain: Any, incarnation: int, version: int) -> bool:
    return bool(method(chain, incarnation, version + 1))


def whole_at_once(method: Any, fill: Any) -> bool:
    return fill.counts is not None


def applies_a_repeat(method: Any, backup: Any, event: Any, message: Any, now: float) -> Any:
    policy = backup.policy
    if policy is not None and backup.is_whole and message.number == policy.version > 0:
        policy.version -= 1
        policy._streams[message.sender].sequence -= 1
    return method(backup, event, message, now)


def goes_back_to_a_file(method: Any, registry: Any, shard: Any) -> Any:
    return None


def any_backup_will_do(method: Any, registry: Any, shard: Any) -> Any:
    return registry.backups.get(shard.name)


def without_the_ledger(method: Any, policy: Any) -> Any:
    return msgspec.structs.replace(method(policy), seen={})


def without_what_was_lost(method: Any, policy: Any) -> Any:
    return msgspec.structs.replace(method(policy), lost={})


def one_update_too_few(method: Any, policy: Any) -> Any:
    counts = method(policy)
    return msgspec.structs.replace(counts, version=max(0, counts.version - 1))


def one_push_too_few(method: Any, policy: Any, part: Any, settled: Any) -> bool:
    lost = method(policy, part, settled)
    part.lost -= lost
    return bool(lost)


def backup(name: str, reported: str, *faults: Fault, at: int = 0, seeds: int = 800) -> PlantedFaults:
    return PlantedFaults(name, reported, faults, "downpour_replicated", at, seeds)


def delivered_by_any_network(method: Any, host: Any, to: str, message: Any, payload: Any) -> bool:
    return method(host, to, message, payload) or backup_index(to) is not None


def directory_first(method: Any, host: Any) -> None:
    return None


FAULTS = [
    backup(
        "delivered by any network", "D1", Fault(SimulatedHost, "transmits", delivered_by_any_network), at=120
    ),
    backup("a directory first", "D1 D3", Fault(SimulatedHost, "read_links", directory_first), at=9),
    backup("acknowledged before the backup has it", "D1", Fault(HeldReplies, "hold", at_once), at=120),
    backup(
        "confirmed before it is there",
        "D1 I8",
        Fault(Backup, "_record", confirmed_before_it_is_there),
        at=231,
    ),
    backup("confirmed and not applied", "D1 I1", Fault(Backup, "_record", confirmed_and_not_applied)),
    backup("all records count as kept", "D1", Fault(Chain, "take", takes_all_for_kept), at=231),
    backup("alone with a backup", "D1", Fault(ReplicatedShard, "_keep", alone_with_a_backup), at=120),
    backup(
        "misses what comes during a copy",
        "D1 I8 validate",
        Fault(Chain, "begin", misses_what_comes_meanwhile),
    ),
    backup("a repeated record is applied", "I1", Fault(Backup, "_record", applies_a_repeat)),
    backup(
        "goes back with a backup",
        "D1 D3 I2 I8 validate",
        Fault(HostRegistry, "backup_of", goes_back_to_a_file),
    ),
    backup(
        "begins from a backup that is not whole",
        "D1 I8 validate",
        Fault(HostRegistry, "backup_of", any_backup_will_do),
    ),
    backup("copied without the ledger", "I1 I2", Fault(ApplyOnArrival, "counts", without_the_ledger)),
    backup(
        "copied without the counts of losses",
        "I2",
        Fault(ApplyOnArrival, "counts", without_what_was_lost),
        at=408,
    ),
    backup(
        "copied with a wrong version",
        "I3 I1 D1 validate",
        Fault(ApplyOnArrival, "counts", one_update_too_few),
    ),
    backup("a loss is counted as one less", "I2", Fault(ApplyOnArrival, "_account", one_push_too_few), at=73),
]
