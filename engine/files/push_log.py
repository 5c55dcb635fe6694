"""The pushes that shards have acknowledged, on disk: they are known after the death of a part's process.

Each process of a part has a file of its own. The record of a stream to a shard is one word, written by one
call, so that a process may die at any time: first those of all shards for the first fragment, then for the
next one. What the kernel has taken over is there when the process is not: nothing is synced, because a host's
crash ends the run.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from partita.engine.protocol.file_messages import PushRecord
from partita.engine.protocol.names import host_and_fragment, shard_index, shard_name, stream_name

_WORD: Final = 8
_PUSHES: Final = 32
"""Bits of a word for the pushes; the others are for the step."""

_FILE: Final = re.compile(r"(part \d+\.\d+)#(\d+)", flags=re.ASCII)


class PushLog:
    """The acknowledgements of one process of a part. Used by the host's thread alone."""

    def __init__(self, folder: Path, part: str, incarnation: int, *, shards: int, fragments: int = 1) -> None:
        """Writes an empty file.

        Args:
            folder: of the run, for all parts; made where it is missing.
            part: the host's name.
            incarnation: of the process.
            shards: how many there are.
            fragments: likewise.

        Raises:
            OSError: the file cannot be written.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._part, self._incarnation, self._cut = (
            folder,
            part,
            incarnation,
            (shards, fragments),
        )
        self._file = os.open(self._path(incarnation), os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        os.pwrite(self._file, bytes(_WORD * shards * fragments), 0)

    def note(self, stream: str, record: PushRecord) -> None:
        """Replaces a stream's record, of this process or of an earlier one of the part."""
        index = _index(stream, *self._cut)
        assert index is not None, stream
        word = _word(record)
        if record.incarnation == self._incarnation:
            os.pwrite(self._file, word, _WORD * index)
            return
        earlier = os.open(self._path(record.incarnation), os.O_RDWR)
        try:
            os.pwrite(earlier, word, _WORD * index)
        finally:
            os.close(earlier)

    def close(self) -> None:
        """Closes the file, which stays."""
        os.close(self._file)

    def _path(self, incarnation: int) -> Path:
        return _path(self._folder, self._part, incarnation)


def note_pushes(
    folder: Path, part: str, stream: str, record: PushRecord, *, shards: int, fragments: int
) -> None:
    """Replaces a part's record of a stream for a process on another machine. Raises OSError."""
    index = _index(stream, shards, fragments)
    if index is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    file = os.open(_path(folder, part, record.incarnation), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.pwrite(file, _word(record), _WORD * index)
    finally:
        os.close(file)


def _index(stream: str, shards: int, fragments: int) -> int | None:
    """The place of a stream's word; None where it is of none of so many shards and fragments."""
    host, fragment = host_and_fragment(stream)
    shard = shard_index(host)
    is_there = shard is not None and shard < shards and fragment < fragments
    return fragment * shards + (shard or 0) if is_there else None


def _path(folder: Path, part: str, incarnation: int) -> Path:
    return folder / f"{part}#{incarnation}"


def _word(record: PushRecord) -> bytes:
    return (record.stop << _PUSHES | record.pushes).to_bytes(_WORD, "little")


def pushes_of_part(folder: Path, part: str, *, shards: int) -> dict[str, tuple[PushRecord, ...]]:
    """For each stream, by the name that the part gives it, the records of the part's processes, ascending."""
    found: defaultdict[str, list[PushRecord]] = defaultdict(list)
    for name, records in _read_all(folder):
        for n, record in enumerate(records) if name == part else ():
            fragment, shard = divmod(n, shards)
            found[stream_name(shard_name(shard), fragment)].append(record)
    return {stream: tuple(records) for stream, records in found.items()}


def pushes_to_shard(folder: Path, shard: int, *, shards: int) -> dict[str, tuple[PushRecord, ...]]:
    """For each stream, as this shard names it, the records of its part's processes, ascending."""
    found: defaultdict[str, list[PushRecord]] = defaultdict(list)
    for name, records in _read_all(folder):
        for fragment, record in enumerate(records[shard::shards]):
            found[stream_name(name, fragment)].append(record)
    return {stream: tuple(records) for stream, records in found.items()}


def _read_all(folder: Path) -> Iterator[tuple[str, Sequence[PushRecord]]]:
    """For each process of a part, by incarnation: the part, and its records in the order of the file."""
    files = [(match, path) for path in folder.glob("part *") if (match := _FILE.fullmatch(path.name))]
    for match, path in sorted(files, key=lambda file: int(file[0][2])):
        data = path.read_bytes()
        words = (data[start : start + _WORD] for start in range(0, len(data) - _WORD + 1, _WORD))
        yield match[1], [_read(int(match[2]), word) for word in words]


def _read(incarnation: int, word: bytes) -> PushRecord:
    number = int.from_bytes(word, "little")
    return PushRecord(incarnation, number & (1 << _PUSHES) - 1, number >> _PUSHES)
