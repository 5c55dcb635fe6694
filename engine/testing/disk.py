"""The folder of a run on a simulated disk: shards' files, manifests, and the coordinator's journal.

They are written as the real ones are: under another name, synced, renamed, and the folder synced; the
manifest last; entries of the journal one after the other, and synced before each manifest. What is read is
what running processes see. After a power loss it is what the file system has left: files stand for their
contents by their bytes, and the bytes of torn ones stand for nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final

from partita.engine.parameters.journal_format import JournalEntry, decode_entries, encode_entry
from partita.engine.protocol.commands import Scalars
from partita.engine.protocol.coordinator_effects import Commit
from partita.engine.protocol.journaled_plan import RecordedAnswer
from partita.engine.testing.filesystem import FileSystem
from partita.engine.testing.invariants import require

JOURNAL: Final = "journal"
MANIFEST: Final = "manifest"
KEPT: Final = 3
"""Checkpoints that are not removed."""

LOOK: Final = 0.1
"""The share of changes after which it is looked at what a power loss would leave."""


@dataclass(frozen=True, slots=True)
class File:
    """A shard's file at a version (a number of pushes or commands). The hash names the writer, too."""

    contents: Any = field(repr=False)
    version: int
    sha256: str


_DAMAGED: Final = "damaged"


class Damaged(Exception):
    """A file of a committed checkpoint cannot be used."""


class Disk:
    """The state that outlives every process.

    Attributes:
        files: of shards, by path.
        manifests: those of committed checkpoints, by number.
        journal: entries in order; the first `synced` of them are safe.
    """

    def __init__(self, random: Random) -> None:
        """An empty folder; `random` draws what a power loss leaves."""
        self.files: dict[str, File] = {}
        self.manifests: dict[int, Commit] = {}
        self.journal: list[RecordedAnswer] = []
        self.synced = 0
        self._random = random
        self._system = FileSystem()
        self._meant: dict[bytes, Any] = {}  # a file's contents, by its bytes
        self._manifest_of: dict[str, Commit] = {}  # by folder
        self._confirmed = (0, 0)  # the newest committed checkpoint, and the lost pushes that it counts
        self._entries: int | None = None

    # The journal.

    def append(self, digest: int, scalars: Scalars) -> None:
        """Writes an entry of the journal."""
        if self._entries is None:
            self._entries = self._system.create(JOURNAL)
            self._system.sync_folder("")
        self._system.append(self._entries, encode_entry(JournalEntry(len(self.journal), digest, scalars)))
        self.journal.append((digest, scalars))
        self._look()

    def sync(self) -> None:
        """Makes the written journal safe."""
        if self._entries is not None:
            self._system.sync(self._entries)
        self.synced = len(self.journal)

    # Files and manifests.

    def begin(self, path: str, file: object) -> int:
        """Begins a file `FOLDER/NAME`, which is there when it is finished. Returns its number."""
        folder, system = path.rpartition("/")[0], self._system
        if not system.is_folder(folder):
            system.mkdir(folder)
            system.sync_folder("")
        data = f"{path} {file}".encode()
        self._meant[data] = file
        temporary = f"{path}.tmp"
        number = system.number(temporary)
        if number is None:
            number = system.create(temporary)
        system.truncate(number, 0)
        system.append(number, data)
        return number

    def finish(self, path: str, number: int) -> bool:
        """Gives a file its name, durably. Returns False where a power loss has taken it."""
        system, temporary = self._system, f"{path}.tmp"
        if system.number(temporary) != number:
            return False
        system.sync(number)
        self._look()
        system.rename(temporary, path)
        self._look()
        system.sync_folder(path.rpartition("/")[0])
        self._look()
        return True

    def keep(self, path: str, number: int, file: File) -> bool:
        """Finishes a shard's file, which can be read from now on."""
        if not self.finish(path, number):
            return False
        self.files[path] = file
        return True

    def commit(self, order: Commit, run: int) -> None:
        """Writes a manifest durably, after every file in it, and removes old checkpoints."""
        folder = f"{order.checkpoint}-{run}"
        path = f"{folder}/{MANIFEST}"
        self.finish(path, self.begin(path, order))
        self.manifests[order.checkpoint] = self._manifest_of[folder] = order
        self._confirmed = max(self._confirmed, (order.checkpoint, order.lost))
        self.prune()

    def prune(self) -> None:
        """Removes checkpoints beyond the newest ones, the manifest of each first."""
        kept = sorted(self.manifests)[-KEPT:]
        for folder, order in list(self._manifest_of.items()):
            if order.checkpoint < kept[0]:
                self._system.remove(f"{folder}/{MANIFEST}")
                for name in self._system.names(folder):
                    self._system.remove(f"{folder}/{name}")
                    self._look()
                self._system.remove(folder)
                del self._manifest_of[folder]

    def next_checkpoint(self) -> int:
        """A number above every checkpoint in the folder, finished or not."""
        folders = (name.partition("-")[0] for name in self._system.names("") if name != JOURNAL)
        return max(map(int, folders), default=0) + 1

    def newest(self) -> Commit | None:
        """The newest checkpoint whose files are those of its manifest, and that the journal reaches."""
        for number in sorted(self.manifests, reverse=True):
            if self.is_usable(self.manifests[number]):
                return self.manifests[number]
        return None

    def is_usable(self, manifest: Commit) -> bool:
        """Returns whether a checkpoint's files are those of its manifest, and the journal reaches it."""
        found = ((self.files.get(entry.file), entry.sha256) for entry in manifest.entries)
        whole = all(file is not None and file.sha256 == sha256 for file, sha256 in found)
        return whole and (manifest.position or 0) <= len(self.journal)

    def committed(self, shard: str, checkpoint: int) -> File:
        """A shard's file of a committed checkpoint (I5).

        Raises:
            Damaged: a bit of it is another one.
        """
        require(checkpoint in self.manifests, "I5", "checkpoint", checkpoint, "was never committed")
        entry = next(entry for entry in self.manifests[checkpoint].entries if entry.shard == shard)
        file = self.files.get(entry.file)
        if file is not None and file.sha256 == _DAMAGED:
            raise Damaged(entry.file)
        there = file is not None and file.sha256 == entry.sha256
        require(there, "I5", "the file of", shard, "in checkpoint", checkpoint, "was overwritten")
        assert file is not None
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

    # Failures.

    def lose_power(self) -> None:
        """Keeps what a power loss leaves, and requires that nothing that was promised is gone (I5)."""
        left = self.after_power_loss()
        self._system, self.files, self.manifests = left._system, left.files, left.manifests
        self._manifest_of, self._entries = left._manifest_of, left._entries
        self.journal, self.synced = left.journal, left.synced

    def _look(self) -> None:
        """Requires now and then that a power loss would take nothing that was promised (I5)."""
        if self._random.random() < LOOK:
            self.after_power_loss()

    def after_power_loss(self) -> Disk:
        """Returns a disk with what a power loss leaves, if nothing that was promised is gone (I5)."""
        left = Disk(self._random)
        left._meant, left._confirmed = self._meant, self._confirmed
        left._system = self._system.after_power_loss(self._random)
        left._read()
        require(len(left.journal) >= self.synced, "I5", len(left.journal), "entries are left of", self.synced)
        prefix = self.journal[: len(left.journal)]
        require(left.journal == prefix, "I5", "the journal is", left.journal, "and was", self.journal)
        newest = left.newest()
        number = (newest.checkpoint, newest.lost) if newest is not None else (0, 0)
        require(number >= self._confirmed, "I5", number, "is the newest checkpoint, and was", self._confirmed)
        return left

    def _read(self) -> None:
        """Reads everything, as the next coordinator does."""
        system = self._system
        for path, data in system.walk():
            folder, _, name = path.rpartition("/")
            if not folder or data is None or name.endswith(".tmp"):
                continue
            found = self._meant.get(data)
            if name != MANIFEST:
                self.files[path] = found if isinstance(found, File) else File(None, 0, "damaged")
            elif isinstance(found, Commit):
                self.manifests[found.checkpoint] = self._manifest_of[folder] = found
        data = system.read(JOURNAL)
        if data is not None:
            entries, end = decode_entries(data, 0)
            self.journal = [(entry.digest, entry.scalars) for entry in entries]
            self._entries = system.number(JOURNAL)
            assert self._entries is not None
            if end < len(data):
                system.truncate(self._entries, end)
                system.sync(self._entries)
        self.synced = len(self.journal)

    def damage(self) -> str:
        """Changes a bit of the newest checkpoint, and returns in which file; "": there is none to change.

        It is not promised from now on.
        """
        order = self.newest()
        if order is None:
            return ""
        path = self._random.choice([entry.file for entry in order.entries])
        if path not in dict(self._system.walk()):
            return ""
        self._system.flip(path, self._random)
        self.files[path] = File(None, 0, _DAMAGED)
        before = self.newest()
        self._confirmed = (0, 0) if before is None else (before.checkpoint, before.lost)
        return path
