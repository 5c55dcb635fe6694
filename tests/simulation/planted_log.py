"""Faults of a shard's log and of the replies that wait for it: what was acknowledged would be lost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from partita.engine.protocol import ApplyOnArrival, Shard
from partita.engine.protocol.durability import HeldReplies, Keep, Kept, RemoveRecords
from partita.engine.testing import Fault
from partita.engine.testing.host import Numbers, SimulatedBody
from partita.engine.testing.log import LogFolder, LogWriter
from tests.simulation.outcomes import PlantedFaults


def nothing(method: Any, *_: Any) -> None:
    return None


def at_once(method: Any, held: Any, effects: Any, number: int) -> Any:
    return [*effects]


def held_for_the_record_before(method: Any, held: Any, effects: Any, number: int) -> Any:
    return method(held, effects, number - 1)


def for_the_newest_checkpoint_alone(method: Any, writer: Any, effect: Any) -> None:
    if isinstance(effect, RemoveRecords):
        writer._in_checkpoint = effect.through
    method(writer, effect)


def the_next_ones_too(method: Any, held: Any, kept: int) -> Any:
    ready = [key for key, (number, _) in held._held.items() if number <= kept + 1]
    return [*method(held, kept), *(held._held.pop(key)[1] for key in ready if key in held._held)]


def kept_before_it_is_synced(method: Any, writer: Any, record: Any) -> None:
    method(writer, record)
    writer._host.result(0.0, Kept(record.number))


def kept_with_what_came_meanwhile(method: Any, writer: Any, synced: Any) -> None:
    writer._folder.sync(writer._segment, synced[1])
    writer._syncing = False
    writer._host.on_event(Kept(writer._written))


def nothing_but_reports(method: Any, writer: Any, synced: Any) -> None:
    sync, writer._folder.system.sync = writer._folder.system.sync, lambda *_: None
    method(writer, synced)
    writer._folder.system.sync = sync


def the_segment_is_not_in_its_folder(method: Any, folder: Any, incarnation: int, first: int) -> Any:
    sync, folder.system.sync_folder = folder.system.sync_folder, lambda path: None
    try:
        return method(folder, incarnation, first)
    finally:
        folder.system.sync_folder = sync


def of_any_checksum(method: Any, folder: Any, data: bytes, at: int) -> Any:
    size, body = method(folder, data, at)
    if body is not None or not size:
        return size, body
    text = data[at + 16 : at + 16 + size]
    for known, record in list(folder._records.items()):
        if known[:12] == text[:12]:
            payload = Numbers([0.0] * len(record.request.payload))
            request = msgspec.structs.replace(record.request, payload=payload)
            folder._records[text] = replace(record, request=request)
            return size, text
    return size, None


def without_the_last(method: Any, folder: Any, version: int) -> Any:
    return method(folder, version)[:-1]


def of_the_newest_segment(method: Any, folder: Any, version: int) -> Any:
    names = folder.system.names("")
    found = {record.number: record for record in (folder._read(names[-1]) if names else ())}
    records = []
    while version + len(records) + 1 in found:
        records.append(found[version + len(records) + 1])
    return records


def from_the_version_on(method: Any, folder: Any, version: int) -> Any:
    return method(folder, version - 1) if version else method(folder, version)


def without_the_ledger(method: Any, policy: Any, record: Any) -> Any:
    effects = method(policy, record)
    policy._streams[record.request.sender].sequence -= 1
    return effects


def as_of_an_earlier_process(method: Any, policy: Any, record: Any) -> Any:
    effects = method(policy, record)
    policy._streams[record.request.sender].incarnation = -1
    return effects


def compacted_when_a_file_is_there(method: Any, body: Any, written: Any) -> None:
    method(body, written)
    body.schedule.coordinator.logs[body.host.name].compact(written[3].version)


def compacted_too_far(method: Any, folder: Any, version: int) -> None:
    for path in folder.system.names(""):
        folder.system.remove(path)


def keeps_what_a_repeat_says(method: Any, shard: Any, event: Any, held: Any) -> Any:
    effects = method(shard, event, held)
    return (
        [effect for effect in effects if not isinstance(effect, Keep)] if shard.version % 3 == 0 else effects
    )


def without_units(method: Any, policy: Any, record: Any) -> Any:
    message = msgspec.structs.replace(record.request.message, units=())
    return method(policy, replace(record, request=msgspec.structs.replace(record.request, message=message)))


def log(name: str, reported: str, *faults: Fault, at: int = 0, seeds: int = 600) -> PlantedFaults:
    return PlantedFaults(name, reported, faults, "downpour_log", at, seeds)


FAULTS = [
    log("acknowledged before it is kept", "D1", Fault(HeldReplies, "hold", at_once)),
    log("held for the record before", "D1", Fault(HeldReplies, "hold", held_for_the_record_before)),
    log("kept releases one more", "D1", Fault(HeldReplies, "release", the_next_ones_too)),
    log("kept before it is synced", "D1 validate", Fault(LogWriter, "keep", kept_before_it_is_synced)),
    log("kept and never synced", "D1", Fault(LogWriter, "on_synced", nothing_but_reports)),
    log("kept with what came meanwhile", "D1", Fault(LogWriter, "on_synced", kept_with_what_came_meanwhile)),
    log("a segment is not in its folder", "D1", Fault(LogFolder, "begin", the_segment_is_not_in_its_folder)),
    log("a torn record is accepted", "D1 I1 I2 I3", Fault(LogFolder, "_frame", of_any_checksum), at=11),
    log("the last record is not replayed", "D1", Fault(LogFolder, "above", without_the_last)),
    log("the newest segment is all", "D1", Fault(LogFolder, "above", of_the_newest_segment)),
    log(
        "the file's last record comes again", "I1 D1 validate", Fault(LogFolder, "above", from_the_version_on)
    ),
    log("what is replayed is not synced", "D1", Fault(LogFolder, "sync_all", nothing), at=533),
    log(
        "replayed without the ledger",
        "I1 D1 D2 I2",
        Fault(ApplyOnArrival, "replay", without_the_ledger),
        at=29,
    ),
    log(
        "replayed without incarnations",
        "I1 D1 D2 I2",
        Fault(ApplyOnArrival, "replay", as_of_an_earlier_process),
        at=29,
    ),
    log(
        "compacted before the manifest",
        "D1",
        Fault(SimulatedBody, "on_written", compacted_when_a_file_is_there),
        at=37,
    ),
    log("compacted too far", "D1", Fault(LogFolder, "compact", compacted_too_far)),
    log("some records are not kept", "D1", Fault(Shard, "_handle", keeps_what_a_repeat_says)),
    log("replayed without units", "I15 I1", Fault(ApplyOnArrival, "replay", without_units), at=26),
    log("the log is not replayed", "D1", Fault(LogFolder, "above", lambda method, folder, version: [])),
    PlantedFaults(
        "a damaged checkpoint has no log",
        "D1",
        (Fault(LogWriter, "carry_out", for_the_newest_checkpoint_alone),),
        driver="downpour_log",
        at=782,
    ),
]
