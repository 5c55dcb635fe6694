"""The log of a shard on a simulated disk: a segment for each process, records one after the other.

It stands for the real one as a body stands for arrays: a record is written at once, and synced together with
those that have come meanwhile. A frame has a length and a checksum, so that what a power loss has torn is
found. A segment begins with the number of its first record: from there on it replaces those of earlier
processes, which may have written records that nobody was promised.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Any, Final

from partita.engine.protocol.durability import BeginSegment, Keep, Kept, Record, RemoveRecords
from partita.engine.testing.filesystem import FileSystem
from partita.engine.testing.host import SimulatedHost
from partita.engine.testing.invariants import require

_FRAME: Final = 16


@dataclass(slots=True)
class _Segment:
    path: str
    number: int
    first: int


class LogFolder:
    """The log of one shard on the disk of its computer, which outlives the shard's processes."""

    def __init__(self) -> None:
        self.system = FileSystem()
        self._records: dict[bytes, Any] = {}  # by their bytes

    def begin(self, incarnation: int, first: int) -> _Segment:
        """Begins the segment of a process, durably."""
        path, system = f"{incarnation:04d}-{first:06d}", self.system
        number = system.create(path)
        system.sync(number)
        system.sync_folder("")
        return _Segment(path, number, first)

    def append(self, segment: _Segment, record: Record) -> None:
        """Writes a record, which is not synced."""
        request = record.request
        text = f"{record.number} {request.sender} {request.incarnation} {request.message} {request.payload}"
        body = text.encode()
        self._records[body] = record
        frame = b"%08x%08x" % (len(body), zlib.crc32(body))
        self.system.append(segment.number, frame + body)

    def sync(self, segment: _Segment, until: int) -> None:
        """Makes the records of a segment last that were there after so many changes."""
        self.system.sync(segment.number, until)

    def recover(self, version: int) -> list[Record]:
        """Returns the records above a version, which last from now on: their process may not have synced
        them.
        """
        found = self.above(version)
        self.sync_all()
        return found

    def sync_all(self) -> None:
        """Makes everything last that can be read."""
        for path in self.system.names(""):
            number = self.system.number(path)
            assert number is not None
            self.system.sync(number)
        self.system.sync_folder("")

    def above(self, version: int) -> list[Record]:
        """Returns the records above a version, as far as there is no gap."""
        found: dict[int, Record] = {}
        for path in self.system.names(""):
            first = int(path.partition("-")[2])
            for number in [number for number in found if number >= first]:
                del found[number]
            found |= {record.number: record for record in self._read(path)}
        records: list[Record] = []
        while version + len(records) + 1 in found:
            records.append(found[version + len(records) + 1])
        return records

    def _read(self, path: str) -> list[Record]:
        """The records of a segment up to the first that is torn."""
        data, at, found = self.system.read(path) or b"", 0, list[Record]()
        while at + _FRAME <= len(data):
            size, body = self._frame(data, at)
            if body is None:
                break
            found.append(self._records[body])
            at += _FRAME + size
        return found

    def _frame(self, data: bytes, at: int) -> tuple[int, bytes | None]:
        try:
            size, checksum = int(data[at : at + 8], 16), int(data[at + 8 : at + _FRAME], 16)
        except ValueError:
            return 0, None
        body = data[at + _FRAME : at + _FRAME + size]
        return size, body if len(body) == size and zlib.crc32(body) == checksum else None

    def compact(self, version: int) -> None:
        """Removes segments whose records all are in a committed file of this version."""
        for path, after in pairwise(self.system.names("")):
            if int(after.partition("-")[2]) <= version + 1:
                self.system.remove(path)

    def left(self, random: Random) -> LogFolder:
        """Returns what a power loss may leave now."""
        found = LogFolder()
        found.system, found._records = self.system.after_power_loss(random), self._records
        return found

    def lose_power(self, random: Random) -> None:
        """Keeps what a power loss leaves."""
        self.system = self.system.after_power_loss(random)


class LogWriter:
    """The writer of one process of a shard. It syncs what has come meanwhile, all at once.

    Attributes:
        sync_s: the longest that syncing takes.
    """

    def __init__(self, host: SimulatedHost, folder: LogFolder, version: int, sync_s: float) -> None:
        self._host, self._folder, self.sync_s = host, folder, sync_s
        self._segment = folder.begin(host.incarnation, version + 1)
        self._written = version
        self._boundary = 0
        self._in_checkpoint = 0  # the last record in the newest committed checkpoint
        self._syncing = False

    def carry_out(self, effect: Keep | BeginSegment | RemoveRecords) -> None:
        """Writes a record, of which `Kept` reports that it is synced; begins or removes segments."""
        match effect:
            case Keep(record=record):
                self.keep(record)
            case BeginSegment(first=first):
                self._boundary = first
            case RemoveRecords(through=through):
                self._folder.compact(self._in_checkpoint)
                self._in_checkpoint = through

    def keep(self, record: Record) -> None:
        """Writes a record; `Kept` follows when it is synced."""
        number, folder = record.number, self._folder
        require(number == self._written + 1, "D1", self._host.id, "keeps", number, "after", self._written)
        if number == self._boundary > self._segment.first:
            folder.sync(self._segment, folder.system.changes)
            self._segment = folder.begin(self._host.incarnation, number)
        folder.append(self._segment, record)
        self._written = number
        if not self._syncing:
            self._begin()

    def _begin(self) -> None:
        self._syncing = True
        wait_s = self.sync_s * self._host.world.beside.random()
        self._host.later(wait_s, self.on_synced, (self._written, self._folder.system.changes))

    def on_synced(self, synced: tuple[int, int]) -> None:
        """Ends a sync, and begins the next one if more has come."""
        number, changes = synced
        self._folder.sync(self._segment, changes)
        self._syncing = False
        if self._written > number:
            self._begin()
        self._host.on_event(Kept(number))
