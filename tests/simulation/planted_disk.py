"""Faults of what is written and read in schedules: each is seen when the power fails, or might have."""

from __future__ import annotations

from typing import Any

from partita.engine.protocol.coordinator_effects import Committed
from partita.engine.protocol.events import Persisted
from partita.engine.testing import Fault
from partita.engine.testing.disk import MANIFEST, Disk
from partita.engine.testing.filesystem import FileSystem
from partita.engine.testing.host import SimulatedBody
from partita.engine.testing.schedule import CoordinatorHost
from tests.simulation.outcomes import PlantedFaults


def nothing(method: Any, *_: Any) -> None:
    return None


def files_without_a_sync(method: Any, disk: Any, path: str, number: int, file: Any) -> bool:
    disk._system.rename(f"{path}.tmp", path)
    disk._system.sync_folder(path.rpartition("/")[0])
    disk.files[path] = file
    return True


def manifests_without_a_sync(method: Any, disk: Any, path: str, number: int) -> bool:
    if not path.endswith(MANIFEST):
        return bool(method(disk, path, number))
    disk._system.rename(f"{path}.tmp", path)
    disk._system.sync_folder(path.rpartition("/")[0])
    return True


def saved_before_the_file_is_there(method: Any, body: Any, written: Any) -> None:
    checkpoint, path, number, file = written
    disk = body._disk
    disk.files[path] = file
    body.host.later(0.2, lambda _: disk.keep(path, number, file))
    body.host.on_event(Persisted(checkpoint, file.version, path, file.sha256))


def committed_before_the_manifest_is_there(method: Any, coordinator: Any, order: Any) -> None:
    disk, run = coordinator.schedule.disk, coordinator.incarnation
    coordinator.later(0.05, lambda _: method(coordinator, order))
    disk._confirmed = max(disk._confirmed, (order.checkpoint, order.lost))
    coordinator.later(0.0, coordinator.on_event, Committed(order.checkpoint))
    assert run >= 0


def older_ones_go_first(method: Any, disk: Any, order: Any, run: int) -> None:
    for folder in list(disk._manifest_of):
        disk._system.remove(f"{folder}/{MANIFEST}")
        disk._look()
        del disk._manifest_of[folder]
    method(disk, order, run)


def one_is_kept_and_it_is_the_oldest(method: Any, disk: Any) -> None:
    newest = max(disk._manifest_of, key=lambda folder: disk._manifest_of[folder].checkpoint)
    if len(disk._manifest_of) > 1:
        disk._system.remove(f"{newest}/{MANIFEST}")
        disk._look()
        del disk._manifest_of[newest]


def a_file_of_the_newest_goes(method: Any, disk: Any) -> None:
    newest = max(disk._manifest_of, key=lambda folder: disk._manifest_of[folder].checkpoint)
    names = [name for name in disk._system.names(newest) if name != MANIFEST]
    if len(names) > 1:
        disk._system.remove(f"{newest}/{names[0]}")
        disk._look()
    method(disk)


def whatever_is_there(method: Any, disk: Any, manifest: Any) -> bool:
    return True


def counted_and_not_synced(method: Any, disk: Any) -> None:
    disk.synced = len(disk.journal)


def the_first_whole_one_only(method: Any, disk: Any) -> int:
    return 1


def the_journal_has_no_name(method: Any, system: Any, path: str) -> None:
    if path:
        method(system, path)


FAULTS = [
    PlantedFaults("no file is synced", "I5", (Fault(FileSystem, "sync", nothing),), "sandblaster"),
    PlantedFaults("no folder is synced", "I5", (Fault(FileSystem, "sync_folder", nothing),), "downpour"),
    PlantedFaults(
        "no folder of replicas is synced", "I5", (Fault(FileSystem, "sync_folder", nothing),), "all_reduce"
    ),
    PlantedFaults(
        "a run's folder is not synced",
        "I5",
        (Fault(FileSystem, "sync_folder", the_journal_has_no_name),),
        "downpour",
    ),
    PlantedFaults(
        "shards' files are not synced", "I5", (Fault(Disk, "keep", files_without_a_sync),), "downpour"
    ),
    PlantedFaults(
        "parts' files are not synced", "I5", (Fault(Disk, "keep", files_without_a_sync),), "all_reduce"
    ),
    PlantedFaults(
        "manifests are not synced", "I5", (Fault(Disk, "finish", manifests_without_a_sync),), "all_reduce"
    ),
    PlantedFaults(
        "a file is reported before it is there",
        "I5",
        (Fault(SimulatedBody, "on_written", saved_before_the_file_is_there),),
        "downpour",
    ),
    PlantedFaults(
        "a checkpoint is confirmed before its manifest",
        "I5 validate",
        (Fault(CoordinatorHost, "_commit", committed_before_the_manifest_is_there),),
        "downpour",
    ),
    PlantedFaults(
        "older checkpoints go first", "I5", (Fault(Disk, "commit", older_ones_go_first),), "all_reduce", 8
    ),
    PlantedFaults(
        "the newest checkpoint goes",
        "I5",
        (Fault(Disk, "prune", one_is_kept_and_it_is_the_oldest),),
        "downpour",
    ),
    PlantedFaults(
        "a file of the newest goes", "I5", (Fault(Disk, "prune", a_file_of_the_newest_goes),), "sandblaster"
    ),
    PlantedFaults(
        "a damaged checkpoint is used",
        "I5 I8",
        (Fault(Disk, "is_usable", whatever_is_there),),
        "sandblaster",
        134,
    ),
    PlantedFaults(
        "entries count as synced", "I5", (Fault(Disk, "sync", counted_and_not_synced),), "sandblaster"
    ),
    PlantedFaults(
        "numbers of checkpoints come again",
        "I5",
        (Fault(Disk, "next_checkpoint", the_first_whole_one_only),),
        "sandblaster",
        16,
    ),
]
