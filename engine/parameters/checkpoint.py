"""Checkpoints: a folder for each, one safetensors file for each shard, and last, with all hashes, a manifest.

    FOLDER/00000012/shard-0.epoch-0.safetensors      values and rule state, by ranges of parameters
                    shard-1.epoch-0.safetensors
                    manifest.json                    without it the checkpoint does not exist

Numbers are kept by ranges of whole parameters, so that a checkpoint can be read into another plan and
another number of shards. It must not know messages or rules: state vectors are names and numbers. Nothing
in a checkpoint is ever executed, and no name in one is taken for a path.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from partita.engine.parameters.files import difference, make_folder, read_plain, sync_folder, write_atomically
from partita.engine.parameters.layout import Shape
from partita.engine.parameters.manifest import (
    CheckpointError,
    Manifest,
    ShardRecord,
    decode_manifest,
    encode_manifest,
    encode_record,
)
from partita.engine.parameters.reader import Checkpoint, tensor_key
from partita.engine.parameters.slots import Slot
from partita.engine.parameters.storage import Snapshot
from partita.engine.parameters.tensors import pieces_of

MANIFEST: Final = "manifest.json"
MANIFEST_BYTES: Final = 1 << 26
"""A manifest beyond this is not read."""


class Checkpoints:
    """The checkpoints of a run in one folder. Every process may have one of its own on the same folder."""

    def __init__(self, folder: str | os.PathLike[str], *, keep: int = 3) -> None:
        """On a folder that need not exist yet.

        Args:
            folder: where they are.
            keep: how many complete ones `prune` leaves, 1 or more.

        Raises:
            ValueError: the path is something else than a folder, or `keep` is below 1.
        """
        self.folder: Final = Path(folder)
        self._keep: Final = keep
        if keep < 1:
            raise ValueError(f"keep={keep} would leave no checkpoint; use 1 or more")
        if self.folder.exists() and not self.folder.is_dir():
            raise ValueError(f"{self.folder} is not a folder; give a folder for the checkpoints")

    def write_shard(
        self, checkpoint: int, record: ShardRecord, slots: Sequence[Slot], snapshot: Snapshot
    ) -> tuple[str, str]:
        """Writes a shard's file, atomically, and returns its (name, SHA-256).

        Args:
            checkpoint: its number; the folder is made where it is missing.
            record: what is remembered beside the numbers.
            slots: what the shard's vector consists of.
            snapshot: of the shard.

        Raises:
            OSError: it is not on disk. Do not try this checkpoint again.
            ValueError: the checkpoint's folder is a link.
        """
        folder = self._path(checkpoint)
        make_folder(folder)
        vectors = {"values": snapshot.values}
        vectors.update((f"state.{name}", vector) for name, vector in snapshot.state.items())
        tensors = {}
        for kind, vector in vectors.items():
            position = 0
            for slot in slots:
                tensors[tensor_key(kind, slot)] = vector[position : position + slot.size]
                position += slot.size
            assert position == vector.size, f"slots of {position} numbers for {kind} of {vector.size}"
        sha256 = write_atomically(folder / record.file, pieces_of(tensors, encode_record(record)))
        return record.file, sha256

    def commit(self, manifest: Manifest) -> None:
        """Makes a checkpoint exist: writes its manifest, atomically, once every file that it lists is there.

        Raises:
            CheckpointError: a file is missing, or the manifest could not be read back.
            OSError: it is not on disk.
        """
        data = encode_manifest(manifest)
        decode_manifest(data)
        folder = self._path(manifest.checkpoint)
        missing = [entry.file for entry in manifest.entries if not (folder / entry.file).is_file()]
        if missing:
            raise CheckpointError(f"checkpoint {folder} cannot be completed: {missing[0]} is not there")
        sync_folder(self.folder)
        write_atomically(folder / MANIFEST, data)

    def prune(self) -> None:
        """Removes complete checkpoints beyond the newest `keep`, and unfinished ones older than the newest.

        Raises:
            OSError: something could not be removed. What is kept is untouched.
        """
        complete = self.complete()
        kept = set(complete[: self._keep])
        for number in self._numbers():
            if complete and number < complete[0] and number not in kept:
                # The manifest first: a removal that is interrupted leaves an unfinished checkpoint, not a
                # damaged one.
                (self._path(number) / MANIFEST).unlink(missing_ok=True)
                shutil.rmtree(self._path(number))

    def complete(self) -> list[int]:
        """The numbers of those with a manifest, newest first."""
        return sorted((n for n in self._numbers() if (self._path(n) / MANIFEST).exists()), reverse=True)

    def next_number(self) -> int:
        """A number above every checkpoint in the folder, finished or not."""
        return max(self._numbers(), default=0) + 1

    def latest(self, shapes: Mapping[str, Shape]) -> Checkpoint | None:
        """The newest complete checkpoint of the network with these parameters.

        A damaged one is passed over for the one before it; `Checkpoint.skipped` says which and why.

        Returns:
            None where no checkpoint was ever completed.

        Raises:
            CheckpointError: there are complete ones, and none can be used.
        """
        skipped: list[str] = []
        for number in self.complete():
            try:
                return self.open(number, shapes, skipped=skipped)
            except CheckpointError as error:
                skipped.append(str(error))
        if skipped:
            older = f" The {len(skipped) - 1} older ones cannot be used either." if len(skipped) > 1 else ""
            raise CheckpointError(f"{skipped[0]}.{older} Train from the start, or give another folder")
        return None

    def open(
        self,
        number: int,
        shapes: Mapping[str, Shape],
        *,
        slots: Sequence[Slot] | None = None,
        skipped: Iterable[str] = (),
    ) -> Checkpoint:
        """The checkpoint of this number, with the hashes of its files verified.

        Args:
            number: which.
            shapes: the network's parameters.
            slots: only what holds some of these will be read, so only that is verified; None: everything.
            skipped: what `latest` could not use.

        Raises:
            CheckpointError: a file is missing or damaged, or it is of another network.
        """
        folder = self._path(number)
        try:
            if folder.is_symlink():
                raise CheckpointError("it is a link, and checkpoints do not leave their folder")
            try:
                manifest = decode_manifest(read_plain(folder / MANIFEST, at_most=MANIFEST_BYTES))
            except (OSError, ValueError) as error:
                raise CheckpointError(f"its manifest cannot be read ({error})") from error
            if manifest.checkpoint != number:
                raise CheckpointError(f"its manifest is of checkpoint {manifest.checkpoint}")
            why = difference(manifest.shapes, shapes)
            if why is not None:
                raise CheckpointError(f"it is of another network: {why}")
            return Checkpoint(folder, manifest, slots=slots, skipped=tuple(skipped))
        except CheckpointError as error:
            raise CheckpointError(f"checkpoint {folder} cannot be used: {error}") from error

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:08d}"

    def _numbers(self) -> list[int]:
        if not self.folder.is_dir():
            return []
        names = (path.name for path in self.folder.iterdir() if path.is_dir() and not path.is_symlink())
        return [int(name) for name in names if re.fullmatch(r"\d{8}", name, flags=re.ASCII)]
