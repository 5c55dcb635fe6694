"""Checkpoints of the coordinator's machine, for a host that does not have their folder.

A host's file is sent, and stored there under its name when all of it has come; the parts that a host needs of
a checkpoint are fetched into a folder of its own, where the hashes are verified as anywhere.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from partita.engine.files.catalogue import checkpoint_file
from partita.engine.files.copies import SparseCopy
from partita.engine.parameters.checkpoint import MANIFEST, MANIFEST_BYTES, Checkpoints, shard_pieces
from partita.engine.parameters.layout import Shape
from partita.engine.parameters.manifest import CheckpointError, ShardRecord
from partita.engine.parameters.reader import Checkpoint
from partita.engine.parameters.slots import Slot
from partita.engine.parameters.snapshot import ShardSnapshot

_HEADER_BYTES: Final = 8


class CheckpointFiles(Protocol):
    """The use that hosts make of checkpoints, see `Checkpoints`."""

    def write_shard(
        self,
        checkpoint: int,
        record: ShardRecord,
        slots: Sequence[Slot],
        snapshot: ShardSnapshot,
        *,
        written: Callable[[int], None] = ...,
    ) -> tuple[str, str]:
        """Writes the file of a host; returns its (name, SHA-256). Raises OSError."""

    def open(
        self, number: int, shapes: Mapping[str, Shape], *, slots: Sequence[Slot] | None = ...
    ) -> Checkpoint:
        """Opens a checkpoint, of which some slots will be read. Raises CheckpointError, OSError."""


class SaveFile(Protocol):
    """Sends a file, and returns its SHA-256 when it is stored."""

    def __call__(
        self,
        name: str,
        pieces: Iterable[bytes | memoryview],
        *,
        written: Callable[[int], None] = ...,
    ) -> str:
        """Sends the pieces. Raises OSError."""


class RemoteCheckpoints:
    """The checkpoints of a run on another machine. One thread writes, and one reads."""

    def __init__(self, folder: Path, *, copy: Callable[[str, Path], SparseCopy], write: SaveFile) -> None:
        """Fetches nothing yet.

        Args:
            folder: on this machine, of this process alone.
            copy: makes a copy of a file there, at a path here.
            write: sends a file.
        """
        self._folder, self._copy, self._write = folder, copy, write

    def write_shard(
        self,
        checkpoint: int,
        record: ShardRecord,
        slots: Sequence[Slot],
        snapshot: ShardSnapshot,
        *,
        written: Callable[[int], None] = lambda n_bytes: None,
    ) -> tuple[str, str]:
        """Sends the file of a host, and returns its (name, SHA-256) when it is stored. Raises OSError."""
        before = 0

        def progress(n_bytes: int) -> None:
            nonlocal before
            written(n_bytes - before)
            before = n_bytes

        name = checkpoint_file(checkpoint, record.file)
        return record.file, self._write(name, shard_pieces(record, slots, snapshot), written=progress)

    def open(
        self, number: int, shapes: Mapping[str, Shape], *, slots: Sequence[Slot] | None = None
    ) -> Checkpoint:
        """Opens a checkpoint, and fetches what contains some of `slots` (None: all).

        Raises:
            CheckpointError: a file is missing or damaged, or of another network.
            OSError: the files cannot be fetched.
        """
        shutil.rmtree(self._folder, ignore_errors=True)  # that of an earlier checkpoint
        folder = self._folder / f"{number:08d}"
        folder.mkdir(parents=True, mode=0o700)
        copies: dict[str, SparseCopy] = {}

        def fetch(file: str, whole: bool) -> None:
            copy = copies.get(file)
            if copy is None:
                copy = copies[file] = self._copy(checkpoint_file(number, file), folder / file)
            if whole:
                copy.ensure_bytes(0, copy.n_bytes)
            else:
                fetch_header(copy)

        try:
            manifest = self._copy(checkpoint_file(number, MANIFEST), folder / MANIFEST)
            if manifest.n_bytes > MANIFEST_BYTES:
                raise CheckpointError(f"checkpoint {number} cannot be used: its manifest is too large")
            manifest.ensure_bytes(0, manifest.n_bytes)
            copies[MANIFEST] = manifest
            return Checkpoints(self._folder).open(number, shapes, slots=slots, fetch=fetch)
        finally:
            for copy in copies.values():
                copy.close()


def fetch_header(copy: SparseCopy) -> int:
    """Fetches the header of a safetensors file, and returns the position after it. Raises
    FilesUnavailable.
    """
    copy.ensure_bytes(0, min(_HEADER_BYTES, copy.n_bytes))
    with copy.path.open("rb") as file:
        size = int.from_bytes(file.read(_HEADER_BYTES), "little")
    end = min(_HEADER_BYTES + size, copy.n_bytes)
    copy.ensure_bytes(0, end)
    return end
