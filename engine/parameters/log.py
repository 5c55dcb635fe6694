"""Log of a shard: its records since a checkpoint, in segments that one process of the shard writes.

    FOLDER/log-00000002-5f3a9c20/shard-0.incarnation-1.from-000000000123.log

The first number counts the runs that wrote a log in FOLDER, the last one is the number of the segment's first
record. A segment replaces every record from its first number on in segments of earlier runs, earlier
incarnations, or earlier beginnings: so a process that outlives its replacement changes nothing, and nobody
writes to a file of another process.

Bytes behind the last whole record of a segment, from a crash, do not count; nor does a damaged record, or any
behind it.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from partita.engine.parameters.files import make_folder, open_plain, sync_folder
from partita.engine.parameters.formats import CheckpointError, NewerFormat
from partita.engine.parameters.log_format import (
    CHUNK_BYTES,
    LoggedRequest,
    SegmentContent,
    SegmentHeader,
    decode_header,
    decode_records,
    encode_header,
    frame_of,
)
from partita.layers.text import counted

_FOLDER: Final = re.compile(r"log-(\d{8,18})-\w{1,8}", flags=re.ASCII)
_SEGMENT: Final = re.compile(r"(shard-\d{1,9})\.incarnation-(\d{1,9})\.from-(\d{12,18})\.log", flags=re.ASCII)
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_SMALL_BYTES: Final = 1 << 16
_ENDLESS: Final = 1 << 62


class LogFull(OSError):
    """There is no room for a record; nothing of it is left in the log."""


@dataclass(frozen=True, slots=True, order=True)
class Segment:
    """A file of a log, in the order of what replaces what."""

    generation: int
    incarnation: int
    first: int
    path: Path = field(compare=False)


def log_folders(folder: Path) -> list[tuple[int, Path]]:
    """Returns the folders of logs in a folder of checkpoints, by the count of their runs."""
    if not folder.is_dir():
        return []
    paths = ((path, _FOLDER.fullmatch(path.name)) for path in folder.iterdir())
    return sorted((int(name[1]), path) for path, name in paths if name and not path.is_symlink())


def next_log(folder: Path, run: str) -> Path:
    """Returns the folder in which a run keeps its logs, above every other one; it is made later."""
    newest = max((number for number, _ in log_folders(folder)), default=0)
    return folder / f"log-{newest + 1:08d}-{run[:8]}"


def remove_logs(folder: Path, *, before: Path | None = None) -> None:
    """Removes the logs in a folder of checkpoints, or those of runs before the one that logs to `before`.

    Raises:
        OSError: something could not be removed.
    """
    for _, path in log_folders(folder):
        if before is not None and path.name >= before.name:
            continue
        for segment in _segments_in(path):
            segment.path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # something of the user's is in it
            path.rmdir()


def segments_of(folder: Path, shard: str) -> list[Segment]:
    """Returns the segments of a shard in a folder of checkpoints, in order."""
    name = shard.replace(" ", "-")
    found = (one for _, path in log_folders(folder) for one in _segments_in(path))
    return sorted(one for one in found if one.path.name.startswith(f"{name}."))


def sync_segments(segments: Iterable[Segment]) -> None:
    """Forces segments to the disk: their writers may have died before they did.

    Before a shard acknowledges what it has read there, or a later power loss takes it. Raises OSError.
    """
    folders = set()
    for segment in segments:
        with contextlib.suppress(FileNotFoundError), open_plain(segment.path) as file:
            os.fdatasync(file.fileno())
        folders.add(segment.path.parent)
    for folder in folders:
        sync_folder(folder)


def _segments_in(folder: Path) -> Iterator[Segment]:
    generation = _FOLDER.fullmatch(folder.name)
    assert generation is not None, folder
    for path in folder.iterdir():
        name = _SEGMENT.fullmatch(path.name)
        if name and not path.is_symlink():
            yield Segment(int(generation[1]), int(name[2]), int(name[3]), path)


@dataclass(eq=False)
class LogContent:
    """The records of a shard above a number, as far as they follow one another.

    Attributes:
        records: in order, each with the header of its segment. Payloads are views of the files.
        segments: of the log, also of what is not used.
        notes: sentences about what is not used.
        unused: whole records that do not count, because one before them is damaged or missing.
    """

    records: list[tuple[SegmentHeader, LoggedRequest]] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unused: int = 0

    @property
    def last(self) -> int | None:
        """Number of the last record; None where there is none."""
        return self.records[-1][1].number if self.records else None


def read_log(folder: Path, shard: str, *, after: int, since: str = "") -> LogContent:
    """Reads the records of a shard above a number, and verifies their checksums.

    Args:
        folder: of checkpoints.
        shard: "shard K".
        after: the number.
        since: name of the first folder of a run's logs that counts.

    Raises:
        NewerFormat: a newer version wrote them.
        OSError: a file cannot be read.
    """
    segments = [one for one in segments_of(folder, shard) if one.path.parent.name >= since]
    found = LogContent(segments=segments)
    limit = _ENDLESS  # a later segment replaces what is from its first record on
    used: list[tuple[Segment, int]] = []
    for segment in reversed(segments):
        if segment.first < limit and limit > after + 1:
            used.append((segment, limit))
        limit = min(limit, segment.first)
    for segment, limit in reversed(used):
        _read_segment(found, segment, after=after, limit=limit)
    return found


def _read_segment(found: LogContent, segment: Segment, *, after: int, limit: int) -> None:
    """Adds the records of a segment below `limit`, as far as they follow those that were found before."""
    try:
        header, content = _decoded(segment)
    except NewerFormat:
        raise
    except CheckpointError as error:
        found.notes.append(f"{segment.path.name} {error}")
        return
    expected = 1 + (after if found.last is None else found.last)
    own = [one for one in content.records if one.number < limit]
    wanted = [one for one in own if one.number >= expected]
    if found.unused:
        found.unused += len(wanted)
        return
    usable = [one for n, one in enumerate(wanted) if one.number == expected + n]
    found.records += [(header, one) for one in usable]
    left, number = wanted[len(usable) :], expected + len(usable)
    if left:
        found.unused = left[0].number - number + len(left)
        found.notes.append(
            f"record {number} of {header.shard} is damaged or missing in its log; "
            f"{counted(len(left), 'record')} behind it cannot be used"
        )
    elif content.rest and (own[-1].number if own else header.first - 1) != limit - 1:
        found.notes.append(
            f"{segment.path.name} ends with {counted(content.rest, 'byte')} that are no whole record and do "
            "not count"
        )


def _decoded(segment: Segment) -> tuple[SegmentHeader, SegmentContent]:
    """Reads a segment. Raises CheckpointError, OSError."""
    try:
        with open_plain(segment.path) as file:
            if not os.fstat(file.fileno()).st_size:
                raise CheckpointError("is empty")
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except FileNotFoundError:
        raise CheckpointError("was removed") from None
    header, start = decode_header(data)
    if (header.incarnation, header.first) != (segment.incarnation, segment.first):
        raise CheckpointError("is a copy of another file")
    return header, decode_records(data, start)


class LogWriter:
    """The segments of one process of a shard. Used by one thread.

    Attributes:
        next: number of the next record.
        n_bytes: size of the shard's log.
    """

    def __init__(
        self,
        folder: Path,
        header: SegmentHeader,
        *,
        older: Sequence[Segment] = (),
        synced: bool = True,
        reserve: int = 0,
    ) -> None:
        """Begins a segment.

        Args:
            folder: of the run's logs; made where it is missing.
            header: of the first segment.
            older: segments of the shard that other processes have written.
            synced: whether records are to survive the machine.
            reserve: bytes that records leave free on the disk: room for a checkpoint, which shortens the log.

        Raises:
            LogFull: there is no room.
            OSError: the file cannot be written.
        """
        self.next = header.first
        self.n_bytes = sum(_size_of(segment.path) for segment in older)
        self._folder, self._synced, self._reserve = folder, synced, reserve
        self._whole = [segment.path for segment in sorted(older)]
        self._firsts = [segment.first for segment in sorted(older)]
        self._file: int | None = None
        make_folder(folder)
        self._begin(header)

    def _begin(self, header: SegmentHeader) -> None:
        """Creates the segment from `next` on, and makes its name survive."""
        name = f"{header.shard.replace(' ', '-')}.incarnation-{header.incarnation}"
        path = self._folder / f"{name}.from-{header.first:012d}.log"
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            data = encode_header(header)
            _write(file, [data])
            if self._synced:
                os.fdatasync(file)
                sync_folder(self._folder)
        except OSError as error:
            os.close(file)
            path.unlink(missing_ok=True)
            raise _with_kind(error, path) from error
        self._header, self._path, self._file = header, path, file
        self._end = self._safe = len(data)
        self._whole.append(path)
        self._firsts.append(header.first)
        self.n_bytes += len(data)

    def append(self, records: Sequence[LoggedRequest]) -> None:
        """Writes the next records; the kernel has them when this returns.

        Raises:
            LogFull: there is no room. Nothing was written, and it may be tried again.
            OSError: they cannot be written.
        """
        assert self._file is not None and all(r.number == self.next + n for n, r in enumerate(records))
        self._check_room(sum(record.n_bytes for record in records))
        try:
            n_bytes = _write(self._file, (chunk for record in records for chunk in frame_of(record)))
        except OSError as error:
            os.ftruncate(self._file, self._end)
            os.lseek(self._file, self._end, os.SEEK_SET)
            raise _with_kind(error, self._path) from error
        self._end += n_bytes
        self.n_bytes += n_bytes
        self.next += len(records)

    def _check_room(self, n_bytes: int) -> None:
        if self._reserve and n_bytes:
            found = os.statvfs(self._folder)
            if found.f_bavail * found.f_frsize < n_bytes + self._reserve:
                why = f"a checkpoint needs what is left ({os.strerror(errno.ENOSPC)})"
                raise LogFull(errno.ENOSPC, f"{self._path} cannot be written: {why}")

    def sync(self) -> None:
        """Forces every record to the disk.

        Raises:
            OSError: that failed. It must not be tried again, because the kernel may then claim success for
                data that it has dropped: what was not synced is cut off.
        """
        assert self._file is not None
        if self._safe == self._end:
            return
        try:
            os.fdatasync(self._file)
        except OSError:
            with contextlib.suppress(OSError):  # the first error is the one to report
                os.ftruncate(self._file, self._safe)
            raise
        self._safe = self._end

    def begin_segment(self) -> None:
        """Begins a segment, so that those before it can be removed. Raises LogFull, OSError."""
        if self.next == self._header.first:
            return
        self.sync()
        assert self._file is not None
        before = self._file
        self._begin(msgspec.structs.replace(self._header, first=self.next, base=None))
        os.close(before)

    def skip(self, number: int) -> None:
        """Begins a segment with a later record: a checkpoint holds those before. Raises LogFull, OSError."""
        self.next = number
        self.begin_segment()

    def bytes_above(self, number: int) -> int:
        """Returns the size of the segments that have records above this number."""
        below = (
            path for path, after in zip(self._whole, self._firsts[1:], strict=False) if after <= number + 1
        )
        return self.n_bytes - sum(map(_size_of, below))

    def remove(self, through: int) -> None:
        """Removes segments in which every record has at most this number. Raises OSError."""
        while len(self._whole) > 1 and self._firsts[1] <= through + 1:
            path = self._whole.pop(0)
            self._firsts.pop(0)
            self.n_bytes -= _size_of(path)
            path.unlink(missing_ok=True)
            if path.parent != self._folder:
                with contextlib.suppress(OSError):  # another shard's segments are in it
                    path.parent.rmdir()

    def close(self) -> None:
        """Closes the file, which stays."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _write(file: int, chunks: Iterable[bytes | memoryview]) -> int:
    """Writes chunks, short ones together; returns their size."""
    n_bytes, small, joined = 0, 0, []
    for chunk in chunks:
        if len(chunk) < _SMALL_BYTES and small < CHUNK_BYTES:
            joined.append(chunk)
            small += len(chunk)
            continue
        n_bytes += _write_all(file, b"".join(joined)) + _write_all(file, chunk)
        small, joined = 0, []
    return n_bytes + _write_all(file, b"".join(joined))


def _write_all(file: int, data: bytes | memoryview) -> int:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
    return len(data)


def _with_kind(error: OSError, path: Path) -> OSError:
    """Returns an error that says whether there is no room."""
    kind = LogFull if error.errno in _FULL else OSError
    return kind(error.errno, f"{path} cannot be written: {error.strerror or error}")


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
