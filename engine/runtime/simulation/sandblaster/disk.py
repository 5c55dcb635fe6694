"""The folder of a run on a simulated disk: shards' files, manifests, and the coordinator's journal.

An entry of the journal that is written survives the end of every process, and a power cut only once it is
synced: before each manifest.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from partita.engine.protocol.commands import Scalars
from partita.engine.protocol.coordinator_effects import Commit
from partita.engine.protocol.journaled_method import JournalEntry
from partita.engine.runtime.simulation.sandblaster.vectors import Vectors


@dataclass(frozen=True, slots=True)
class File:
    """A shard's file: its vectors, after the command of this number. The hash says who wrote it, too."""

    vectors: Vectors = field(repr=False)
    number: int
    sha256: str


@dataclass(slots=True)
class Disk:
    """What outlives every process.

    Attributes:
        files: of shards, by name.
        folders: the checkpoints of which somebody has begun to write.
        manifests: those of committed checkpoints, by number.
        journal: entries in order; the first `synced` of them are safe.
    """

    files: dict[str, File] = field(default_factory=dict)
    folders: set[int] = field(default_factory=set)
    manifests: dict[int, Commit] = field(default_factory=dict)
    journal: list[JournalEntry] = field(default_factory=list)
    synced: int = 0

    def append(self, digest: int, scalars: Scalars) -> None:
        """Writes an entry of the journal."""
        self.journal.append((digest, scalars))

    def sync(self) -> None:
        """What is written in the journal is safe."""
        self.synced = len(self.journal)

    def lose_power(self) -> None:
        """What was not synced is gone."""
        del self.journal[self.synced :]

    def next_checkpoint(self) -> int:
        """A number above every checkpoint in the folder, finished or not."""
        return max(self.folders, default=0) + 1

    def newest(self) -> Commit | None:
        """The newest checkpoint of which every file is as its manifest says, and that the journal reaches."""
        for number in sorted(self.manifests, reverse=True):
            manifest = self.manifests[number]
            whole = all(self.files[entry.file].sha256 == entry.sha256 for entry in manifest.entries)
            if whole and (manifest.position or 0) <= len(self.journal):
                return manifest
        return None

    def read(self, shard: str, checkpoint: int) -> File | None:
        """A shard's file of a committed checkpoint; None where it is another one than the manifest says."""
        entry = next(entry for entry in self.manifests[checkpoint].entries if entry.shard == shard)
        file = self.files[entry.file]
        return file if file.sha256 == entry.sha256 else None
