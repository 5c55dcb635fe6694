"""Pushes that shards have acknowledged to the processes of parts, on disk: they are known after a death.

Each process of a part has a file of its own. The number of a shard is one word, written by one call, so that
a process may die at any time. What the kernel has taken over is there when the process is not: nothing is
synced, because a host's crash ends the run. It must not know what follows from the counts.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from partita.engine.protocol.messages import PushRecord
from partita.engine.protocol.names import shard_index, shard_name

_WORD: Final = 8
_PUSHES: Final = 32
"""Bits of a word for the pushes; the others are for the step."""

_FILE: Final = re.compile(r"(part \d+\.\d+)#(\d+)", flags=re.ASCII)


class PushLog:
    """What one process of a part has been acknowledged. Used by the host's thread alone."""

    def __init__(self, folder: Path, part: str, incarnation: int, *, shards: int) -> None:
        """Nothing, yet.

        Args:
            folder: of the run, for all parts; made where it is missing.
            part: the host's name.
            incarnation: of the process.
            shards: how many there are.

        Raises:
            OSError: there is no room.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._part, self._incarnation = folder, part, incarnation
        self._file = os.open(self._path(incarnation), os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        os.pwrite(self._file, bytes(_WORD * shards), 0)

    def note(self, shard: str, settled: PushRecord) -> None:
        """Keeps it, in place of what was noted before. An earlier process of the part may be meant."""
        index = shard_index(shard)
        assert index is not None, shard
        word = (settled.stop << _PUSHES | settled.pushes).to_bytes(_WORD, "little")
        if settled.incarnation == self._incarnation:
            os.pwrite(self._file, word, _WORD * index)
            return
        earlier = os.open(self._path(settled.incarnation), os.O_RDWR)
        try:
            os.pwrite(earlier, word, _WORD * index)
        finally:
            os.close(earlier)

    def close(self) -> None:
        """Lets go of the file, which stays."""
        os.close(self._file)

    def _path(self, incarnation: int) -> Path:
        return self._folder / f"{self._part}#{incarnation}"


def pushes_of_part(folder: Path, part: str, *, before: int) -> dict[str, tuple[PushRecord, ...]]:
    """For each shard, what the processes of a part before this incarnation have noted, ascending."""
    found: defaultdict[str, list[PushRecord]] = defaultdict(list)
    for name, settled in _noted(folder):
        if name == part:
            for shard, one in settled.items():
                if one.incarnation < before:
                    found[shard].append(one)
    return {shard: tuple(sorted(noted, key=_incarnation)) for shard, noted in found.items()}


def pushes_to_shard(folder: Path, shard: str) -> dict[str, tuple[PushRecord, ...]]:
    """For each part, what its processes have noted of this shard, ascending."""
    found: defaultdict[str, list[PushRecord]] = defaultdict(list)
    for name, settled in _noted(folder):
        if shard in settled:
            found[name].append(settled[shard])
    return {part: tuple(sorted(noted, key=_incarnation)) for part, noted in found.items()}


def _noted(folder: Path) -> Iterator[tuple[str, Mapping[str, PushRecord]]]:
    """For each process of a part, in no order: the part, and what it has noted of each shard."""
    for path in folder.glob("part *"):
        named = _FILE.fullmatch(path.name)
        if named is not None:
            data = path.read_bytes()
            words = (data[start : start + _WORD] for start in range(0, len(data) - _WORD + 1, _WORD))
            yield (
                named[1],
                {shard_name(n): _read(int(named[2]), word) for n, word in enumerate(words)},
            )


def _read(incarnation: int, word: bytes) -> PushRecord:
    number = int.from_bytes(word, "little")
    return PushRecord(incarnation, number & (1 << _PUSHES) - 1, number >> _PUSHES)


def _incarnation(settled: PushRecord) -> int:
    return settled.incarnation
