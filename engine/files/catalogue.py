"""The files that a run's hosts may read and write, by name: no path that a host sends is ever opened."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from partita.engine.parameters.checkpoint import MANIFEST, Checkpoints
from partita.engine.parameters.manifest import SHARD_FILE, own_file

_CHECKPOINT: Final = re.compile(r"checkpoint/(\d{1,18})/([^/]{1,100})", flags=re.ASCII)


@dataclass(frozen=True)
class Catalogue:
    """The files of one run on the coordinator's machine.

    Args:
        folder: temporary folder of the run.
        files: path of each file that hosts may read, by name.
        checkpoints: that hosts may read, and to which each may add files of its own.
        pushes: folder of the records of acknowledged pushes; None where parts note none.
        most_bytes: size of the largest file that is taken.
        shared: whether all hosts have the folder for checkpoints, by its path.
        shards: of the run, to which the pushes are.
        fragments: of which the pushes are.
    """

    folder: Path
    files: Mapping[str, Path]
    checkpoints: Checkpoints
    pushes: Path | None = None
    most_bytes: int = 1 << 40
    shared: bool = False
    shards: int = 1
    fragments: int = 1

    def readable(self, name: str) -> Path | None:
        """Returns the path of a file that hosts may read; None where there is none of this name."""
        found = self.files.get(name)
        if found is not None:
            return found
        match = _CHECKPOINT.fullmatch(name)
        if match is None or not (match[2] == MANIFEST or SHARD_FILE.fullmatch(match[2])):
            return None
        return self.checkpoints.path(int(match[1])) / match[2]

    def writable(self, name: str, *, writer: str, incarnation: int) -> tuple[int, str] | None:
        """Returns the checkpoint and the file of this name, if it is the writer's own; else None."""
        match = _CHECKPOINT.fullmatch(name)
        if match is None or match[2] != own_file(writer, incarnation):
            return None
        return int(match[1]), match[2]


def checkpoint_file(checkpoint: int, file: str) -> str:
    """Returns the name by which a file of a checkpoint is asked for."""
    return f"checkpoint/{checkpoint}/{file}"
