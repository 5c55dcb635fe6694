"""The folder of a run on a simulated disk: shards' files, manifests, and the coordinator's journal.

An entry of the journal that is written survives the end of every process, and a power cut only once it is
synced: before each manifest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from partita.engine.protocol.commands import Scalars
from partita.engine.protocol.coordinator_effects import Commit
from partita.engine.protocol.journaled_plan import RecordedAnswer
from partita.engine.testing.invariants import require


@dataclass(frozen=True, slots=True)
class File:
    """A shard's file at a version (a number of pushes or commands). The hash names the writer, too."""

    contents: Any = field(repr=False)
    version: int
    sha256: str


@dataclass(slots=True)
class Disk:
    """The state that outlives every process.

    Attributes:
        files: of shards, by name.
        folders: the checkpoints of which a file has been begun.
        manifests: those of committed checkpoints, by number.
        journal: entries in order; the first `synced` of them are safe.
    """

    files: dict[str, File] = field(default_factory=dict)
    folders: set[int] = field(default_factory=set)
    manifests: dict[int, Commit] = field(default_factory=dict)
    journal: list[RecordedAnswer] = field(default_factory=list)
    synced: int = 0

    def append(self, digest: int, scalars: Scalars) -> None:
        """Writes an entry of the journal."""
        self.journal.append((digest, scalars))

    def sync(self) -> None:
        """Makes the written journal safe."""
        self.synced = len(self.journal)

    def lose_power(self) -> None:
        """Drops the entries that were not synced."""
        del self.journal[self.synced :]

    def next_checkpoint(self) -> int:
        """A number above every checkpoint in the folder, finished or not."""
        return max(self.folders, default=0) + 1

    def newest(self) -> Commit | None:
        """The newest checkpoint whose files are those of its manifest, and that the journal reaches."""
        for number in sorted(self.manifests, reverse=True):
            manifest = self.manifests[number]
            whole = all(self.files[entry.file].sha256 == entry.sha256 for entry in manifest.entries)
            if whole and (manifest.position or 0) <= len(self.journal):
                return manifest
        return None

    def committed(self, shard: str, checkpoint: int) -> File:
        """A shard's file of a committed checkpoint (I5)."""
        require(checkpoint in self.manifests, "I5", "checkpoint", checkpoint, "was never committed")
        entry = next(entry for entry in self.manifests[checkpoint].entries if entry.shard == shard)
        file = self.files[entry.file]
        there = file.sha256 == entry.sha256
        require(there, "I5", "the file of", shard, "in checkpoint", checkpoint, "was overwritten")
        return file

    def require_whole(self, order: Commit, current: Mapping[str, int], shards: Iterable[str]) -> None:
        """Checks that a checkpoint is whole, newer than all others, and of the current shards (I5)."""
        require(tuple(entry.shard for entry in order.entries) == tuple(shards), "I5", order, "is not whole")
        before = self.manifests.get(order.checkpoint)
        if before is not None:
            require(replace(before, lost=order.lost) == order, "I5", order, "is another one than", before)
            require(order.lost > before.lost, "I2", order, "is ordered again, and no more pushes are lost")
            return
        require(order.checkpoint > max(self.manifests, default=0), "I5", order, "is not the newest")
        for entry in order.entries:
            file = self.files.get(entry.file)
            there = file is not None and (file.version, file.sha256) == (entry.version, entry.sha256)
            require(there, "I5", entry, "is not on disk")
            require(current[entry.shard] == entry.incarnation, "I5", entry, "is of an old process")
