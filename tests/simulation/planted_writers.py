"""Faults planted in the real writers of files: each must cost something that was promised."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from partita.engine.parameters import (
    Checkpoints,
    Journal,
    checkpoint,
    files,
    journal_format,
    log,
    log_format,
    reader,
)

Patch = pytest.MonkeyPatch


class PlantedWriter(NamedTuple):
    """A fault of a writer.

    Args:
        name: of what is wrong.
        plant: switches it on.
        play: which test finds it: "checkpoints", "damage" or "journal".
        ignored: what is not synced, of "files" and "folders".
        reported: what is found.
        seeds: how many are tried.
    """

    name: str
    plant: Callable[[Patch], None] = lambda patch: None
    play: str = "checkpoints"
    ignored: frozenset[str] = frozenset()
    reported: str = "cannot be used"
    seeds: int = 20


def wrap(patch: Patch, owner: Any, name: str, instead: Callable[..., Any]) -> None:
    """Replaces a method by `instead(method, self, *arguments)`."""
    real = getattr(owner, name)
    patch.setattr(owner, name, lambda *arguments, **options: instead(real, *arguments, **options))


# Checkpoints.


def written_in_place(method: Any, file: Any, path: Path, **options: Any) -> None:
    method(file, path, **options)
    file._temporary.rename(path)
    file._temporary = path


def renamed_before_it_is_synced(method: Any, file: Any, **options: Any) -> Any:
    os.replace(file._temporary, file._path)
    files.sync_folder(file._path.parent)
    file._temporary = file._path
    return method(file, **options)


def synced_before_the_last_bytes(method: Any, file: Any, data: Any) -> None:
    os.fsync(file._descriptor)
    wrong, file._since_sync = file._descriptor, 0
    method(file, data)
    assert file._descriptor == wrong


def no_sync_at_the_end(method: Any, file: Any, **options: Any) -> str:
    found = file._sha256.hexdigest()
    file._close()
    os.replace(file._temporary, file._path)
    files.sync_folder(file._path.parent)
    return str(found)


class ManifestFirst:
    """Shards' files are written when the manifest is on the disk."""

    def __init__(self, patch: Patch) -> None:
        self._late: list[tuple[Path, bytes]] = []
        wrap(patch, Checkpoints, "write_shard", self._shard)
        wrap(patch, Checkpoints, "checked", self._checked)
        wrap(patch, Checkpoints, "prune", self._prune)

    def _shard(self, method: Any, store: Any, number: int, record: Any, slots: Any, snapshot: Any) -> Any:
        data = b"".join(map(bytes, checkpoint.shard_pieces(record, slots, snapshot)))
        self._late.append((store.path_of(number, record.file), data))
        return record.file, hashlib.sha256(data).hexdigest()

    @staticmethod
    def _checked(method: Any, store: Any, manifest: Any) -> Any:
        return store._own(manifest.checkpoint), checkpoint.encode_manifest(manifest)

    def _prune(self, method: Any, store: Any) -> None:
        for path, data in self._late:
            files.write_atomically(path, data)
        self._late.clear()


def older_ones_go_first(method: Any, store: Any, manifest: Any) -> None:
    for _, path in list(store._found()):
        if os.path.lexists(path / checkpoint.MANIFEST):
            checkpoint._remove(path)
    method(store, manifest)


def only_the_newest_file_is_kept(method: Any, store: Any, manifest: Any) -> None:
    method(store, manifest)
    newest = store.path(manifest.checkpoint)
    (newest / manifest.entries[0].file).unlink()


def no_hash(patch: Patch) -> None:
    wrap(patch, reader.Checkpoint, "_verify", lambda method, found, file, sha256: None)


def the_newest_or_nothing(method: Any, store: Any, shapes: Any, **options: Any) -> Any:
    complete = store.complete()
    return store.open(complete[0], shapes) if complete else None


def a_damaged_one_is_passed_over_in_silence(
    method: Any, store: Any, number: int, *rest: Any, **o: Any
) -> Any:
    return method(store, number, *rest, **(o | {"skipped": [""] * len(o.get("skipped", ()))}))


# The journal.


def no_checksum(patch: Patch) -> None:
    patch.setattr(journal_format, "_checksum", lambda body: 0)


def what_is_damaged_is_not_cut_off(method: Any, journal: Any) -> int:
    if journal._descriptor is None:
        journal._descriptor = os.open(journal.path, os.O_WRONLY)
        os.lseek(journal._descriptor, 0, os.SEEK_END)
    return int(method(journal))


def the_cut_is_not_synced(method: Any, journal: Any) -> int:
    object.__setattr__(journal, "cut", "")
    return int(method(journal))


def header_in_place(method: Any, path: Path, header: Any) -> Any:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    os.write(descriptor, journal_format.encode_header(header))
    os.close(descriptor)
    return Journal(path, header, len(journal_format.encode_header(header)))


# The log of a shard.


def recovered_and_not_synced(patch: Patch) -> None:
    patch.setattr("tests.simulation.test_power_loss.sync_segments", lambda segments: None)


def unsynced(method: Any, writer: Any) -> None:
    writer._safe = writer._end


def removed_one_too_many(method: Any, writer: Any, through: int) -> None:
    method(writer, through)
    if len(writer._whole) > 1:
        writer._whole.pop(0).unlink()
        writer._firsts.pop(0)


def numbers_are_not_looked_at(method: Any, found: Any, segment: Any, *, after: int, limit: int) -> None:
    method(found, segment, after=after, limit=1 << 62)


def checksums_are_not_looked_at(patch: Patch) -> None:
    patch.setattr(log_format.zlib, "crc32", lambda *_: 0)


def no_folder(method: Any, writer: Any, header: Any) -> None:
    writer._synced = False
    method(writer, header)
    writer._synced = True


def wrapped(owner: Any, name: str, instead: Callable[..., Any]) -> Callable[[Patch], None]:
    return lambda patch: wrap(patch, owner, name, instead)


FAULTS = [
    PlantedWriter("files are not synced", ignored=frozenset({"files"})),
    PlantedWriter(
        "folders are not synced", ignored=frozenset({"folders"}), reported="is the newest, and was"
    ),
    PlantedWriter("a file is written in place", wrapped(files.AtomicFile, "__init__", written_in_place)),
    PlantedWriter(
        "renamed before it is synced", wrapped(files.AtomicFile, "finish", renamed_before_it_is_synced)
    ),
    PlantedWriter("not synced at the end", wrapped(files.AtomicFile, "finish", no_sync_at_the_end)),
    PlantedWriter("the manifest comes before the files", lambda patch: (ManifestFirst(patch), None)[1]),
    PlantedWriter(
        "older checkpoints go first",
        wrapped(Checkpoints, "commit", older_ones_go_first),
        reported="is the newest, and was",
    ),
    PlantedWriter(
        "a file of the newest is removed", wrapped(Checkpoints, "commit", only_the_newest_file_is_kept)
    ),
    PlantedWriter("the newest or nothing", wrapped(Checkpoints, "latest", the_newest_or_nothing), "damage"),
    PlantedWriter(
        "damage is not said",
        wrapped(Checkpoints, "open", a_damaged_one_is_passed_over_in_silence),
        "damage",
        reported="00000004",
    ),
    PlantedWriter("hashes are not looked at", no_hash, "damage", reported="of checkpoint 4"),
    PlantedWriter(
        "entries are not synced",
        play="journal",
        ignored=frozenset({"files"}),
        reported="damaged in its first line",
    ),
    PlantedWriter(
        "entries have no checksum", no_checksum, "journal", reported="were never written like this"
    ),
    PlantedWriter(
        "a torn entry stays before new ones",
        wrapped(Journal, "claim", what_is_damaged_is_not_cut_off),
        "journal",
        reported="are left of",
    ),
    PlantedWriter(
        "a cut that is not synced",
        wrapped(Journal, "claim", the_cut_is_not_synced),
        "journal",
        seeds=60,
        reported="were never written like this",
    ),
    PlantedWriter(
        "the header is written in place",
        wrapped(Journal, "create", header_in_place),
        "journal",
        reported="damaged in its first line",
    ),
    PlantedWriter(
        "a segment is not synced",
        wrapped(log.LogWriter, "sync", unsynced),
        "log",
        reported="was acknowledged",
    ),
    PlantedWriter(
        "a segment is not in its folder",
        wrapped(log.LogWriter, "_begin", no_folder),
        "log",
        reported="was acknowledged",
    ),
    PlantedWriter(
        "what is recovered is not synced", recovered_and_not_synced, "log", reported="was acknowledged"
    ),
    PlantedWriter(
        "a segment too many is removed",
        wrapped(log.LogWriter, "remove", removed_one_too_many),
        "log",
        reported="was acknowledged",
    ),
    PlantedWriter(
        "segments do not replace older ones",
        wrapped(log, "_read_segment", numbers_are_not_looked_at),
        "log",
        reported="was",
    ),
    PlantedWriter("records have no checksum", checksums_are_not_looked_at, "log", reported="was"),
]
