"""Checkpoints: a folder for each, one safetensors file for each shard, and last, with all hashes, a manifest.

    FOLDER/00000012-5f3a9c20/partita     the mark, with the run that created this folder
                             shard-0.incarnation-0.safetensors    values and optimizer state, by ranges
                             shard-1.incarnation-0.safetensors
                             manifest.json                    makes the checkpoint complete

A folder's name contains the checkpoint's number and the run, so that a process that outlives its run writes
into no other run's files. The rest of FOLDER is the user's: only folders with a mark are read and removed,
and only the files that are written here.

Numbers are stored by ranges of whole parameters, so a checkpoint can be read into another plan and another
number of shards. Nothing in a checkpoint is executed, and no name in one is used as a path.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from partita.engine.parameters.files import (
    layer_difference,
    make_folder,
    read_plain,
    shape_difference,
    sync_folder,
    write_atomically,
)
from partita.engine.parameters.formats import CheckpointError, NewerFormat
from partita.engine.parameters.layout import Shape
from partita.engine.parameters.manifest import (
    SHARD_FILE,
    Manifest,
    ShardRecord,
    decode_manifest,
    encode_manifest,
    encode_record,
)
from partita.engine.parameters.reader import Checkpoint, Fetch, tensor_key
from partita.engine.parameters.slots import Slot, split
from partita.engine.parameters.snapshot import ShardSnapshot
from partita.engine.parameters.tensors import pieces_of
from partita.engine.parameters.vector import Vector

MANIFEST: Final = "manifest.json"
MANIFEST_BYTES: Final = 1 << 26  # largest manifest that is read
MARK: Final = "partita"
_MARKED: Final = b"a checkpoint of Partita, run "
_MARK_BYTES: Final = 1 << 10
_FOLDER: Final = re.compile(r"(\d{8,18})(?:-\w{1,8})?", flags=re.ASCII)
_HALF_MADE: Final = re.compile(rf"\.{_FOLDER.pattern}\.[0-9a-f]{{8}}\.tmp", flags=re.ASCII)
_FILE: Final = re.compile(
    rf"{re.escape(MANIFEST)}|{SHARD_FILE.pattern}"
    rf"|\.({re.escape(MANIFEST)}|{MARK}|{SHARD_FILE.pattern})\.[0-9a-f]{{8}}\.tmp",
    flags=re.ASCII,
)
"""Names of a checkpoint's files except its mark, and of interrupted writes."""


class Checkpoints:
    """The checkpoints in one folder, which several processes may use."""

    def __init__(self, folder: str | os.PathLike[str], *, keep: int = 3, run: str = "") -> None:
        """Checks the arguments; the folder need not exist yet, and may be a link to one.

        `prune` leaves the newest `keep` complete checkpoints. The first eight characters of `run`, the id of
        the run that writes, are in the names of its folders.

        Raises:
            ValueError: the path is not a folder, or `keep` is below 1.
        """
        self.folder: Final = Path(folder)
        self._keep: Final = keep
        self._run: Final = run
        self._whole: Final[dict[int, object]] = {}  # for each number, the files that were whole
        if keep < 1:
            raise ValueError(f"keep={keep} would leave no checkpoint; use 1 or more")
        if self.folder.exists() and not self.folder.is_dir():
            raise ValueError(f"{self.folder} is not a folder; give a folder for the checkpoints")

    def write_shard(
        self,
        checkpoint: int,
        record: ShardRecord,
        slots: Sequence[Slot],
        snapshot: ShardSnapshot,
        *,
        written: Callable[[int], None] = lambda n_bytes: None,
    ) -> tuple[str, str]:
        """Writes the file of a shard whose vector consists of `slots`, atomically; returns its (name,
        SHA-256).

        `record` is stored with the numbers. `written` is called with the number of bytes that have just been
        synced.

        Raises:
            OSError: it could not be written.
        """
        path = self.path_of(checkpoint, record.file)
        sha256 = write_atomically(path, shard_pieces(record, slots, snapshot), written=written)
        return record.file, sha256

    def path_of(self, checkpoint: int, file: str) -> Path:
        """Returns where this run writes a file of a checkpoint, in a folder that is made if need be.

        Raises:
            OSError: the folder could not be made.
        """
        assert SHARD_FILE.fullmatch(file), file
        folder = self._own(checkpoint)
        self._make(folder)
        return folder / file

    def commit(self, manifest: Manifest) -> None:
        """Completes a checkpoint: writes its manifest atomically, after every file that it lists.

        Raises:
            CheckpointError: a file is missing, or the manifest is invalid.
            OSError: it could not be written.
        """
        folder, data = self.checked(manifest)
        sync_folder(self.folder)
        write_atomically(folder / MANIFEST, data)
        self._whole[manifest.checkpoint] = _written(folder)

    def checked(self, manifest: Manifest) -> tuple[Path, bytes]:
        """Returns the folder of a checkpoint that can be completed, and the content of its manifest.

        Raises:
            CheckpointError: a file is missing, or the manifest is invalid.
        """
        data = encode_manifest(manifest)
        decode_manifest(data)
        folder = self._own(manifest.checkpoint)
        missing = [entry.file for entry in manifest.entries if not (folder / entry.file).is_file()]
        if missing:
            raise CheckpointError(f"checkpoint {folder} cannot be completed: {missing[0]} is not there")
        return folder, data

    def prune(self, *, first: int = 0, held: int | None = None) -> None:
        """Removes what is older than the newest `keep` whole checkpoints, and incomplete ones older than the
        newest.

        Damaged ones do not count, so where there are fewer whole ones, all stay. Checkpoints below `first`
        are of a replaced run, and are removed once there is a newer one that is whole. `held` stays.

        Raises:
            OSError: something could not be removed; the remaining checkpoints are intact.
        """
        complete = self.complete()
        if not complete:
            return
        own = [number for number in complete if number >= first] or complete
        whole = list(islice(filter(self._is_whole, own), self._keep))
        oldest = whole[-1] if len(whole) == self._keep else own[-1] if whole else 0
        for number, path in list(self._found()):
            is_complete = number in complete
            if number == held:
                continue
            if number < (oldest if is_complete else complete[0]) and _is_marked(path):
                _remove(path)
                self._whole.pop(number, None)
        for path in list(self.folder.iterdir()):
            half_made = _HALF_MADE.fullmatch(path.name)
            if half_made and int(half_made[1]) < complete[0] and not path.is_symlink() and path.is_dir():
                _remove(path)

    def _is_whole(self, number: int) -> bool:
        """Returns whether a checkpoint can be used. It is read again only if its files have changed since."""
        folder = self.path(number)
        try:
            files = _written(folder)
            if self._whole.get(number) != files:
                self.open(number, None)
                self._whole[number] = files
        except (OSError, ValueError):
            return False
        return True

    def complete(self) -> list[int]:
        """Returns the numbers of the complete checkpoints, newest first."""
        return sorted({n for n, path in self._found() if os.path.lexists(path / MANIFEST)}, reverse=True)

    def next_number(self) -> int:
        """Returns a number above every checkpoint in the folder, complete or not."""
        return max((number for number, _ in self._found()), default=0) + 1

    def latest(
        self, shapes: Mapping[str, Shape] | None, *, network: Mapping[str, str] | None = None
    ) -> Checkpoint | None:
        """Opens the newest usable checkpoint of a network with these shapes and texts of layers (None: any
        shapes, any texts).

        Returns None where there is no complete one. `Checkpoint.skipped` describes damaged ones.

        Raises:
            NewerFormat: a newer version wrote the newest one that is not damaged.
            CheckpointError: no complete checkpoint is usable.
        """
        skipped: list[str] = []
        for number in self.complete():
            try:
                return self.open(number, shapes, network=network, skipped=skipped)
            except NewerFormat:
                raise
            except CheckpointError as error:
                skipped.append(str(error))
        if skipped:
            older = f" The {len(skipped) - 1} older ones cannot be used either." if len(skipped) > 1 else ""
            raise CheckpointError(f"{skipped[0]}.{older} Train from the start, or give another folder")
        return None

    def open(
        self,
        number: int,
        shapes: Mapping[str, Shape] | None,
        *,
        network: Mapping[str, str] | None = None,
        slots: Sequence[Slot] | None = None,
        skipped: Iterable[str] = (),
        fetch: Fetch = lambda file, whole: None,
    ) -> Checkpoint:
        """Opens the checkpoint of this number, and verifies the hashes of its files.

        Only files that contain some of `slots` will be read and are verified (None: all). For `shapes`,
        `network` and `skipped` see `latest`, for `fetch` see `Checkpoint`.

        Raises:
            CheckpointError: a file is missing or damaged, or of another network.
        """
        folder = self.path(number)
        try:
            if folder.is_symlink():
                raise CheckpointError("it is a link, and checkpoints do not leave their folder; remove it")
            try:
                data = read_plain(folder / MANIFEST, at_most=MANIFEST_BYTES)
            except (OSError, ValueError) as error:
                raise CheckpointError(f"its manifest cannot be read ({error})") from error
            manifest = decode_manifest(data)
            if manifest.checkpoint != number:
                raise CheckpointError(f"its manifest is of checkpoint {manifest.checkpoint}")
            expected = manifest.shapes if shapes is None else shapes
            why = shape_difference(manifest.shapes, expected) or layer_difference(
                manifest.network, network or {}
            )
            if why is not None:
                raise CheckpointError(f"it is of another network: {why}")
            return Checkpoint(folder, manifest, slots=slots, skipped=tuple(skipped), fetch=fetch)
        except CheckpointError as error:
            raise type(error)(f"checkpoint {folder} cannot be used: {error}") from error

    def _own(self, number: int) -> Path:
        """Returns the folder in which this run writes a checkpoint."""
        return self.folder / (f"{number:08d}-{self._run[:8]}" if self._run else f"{number:08d}")

    def path(self, number: int) -> Path:
        """Returns the folder of a checkpoint, of this run or an earlier one."""
        own = self._own(number)
        if os.path.lexists(own / MANIFEST):
            return own
        found = [path for n, path in self._found() if n == number and os.path.lexists(path / MANIFEST)]
        return max(found, default=own)

    def _found(self) -> Iterator[tuple[int, Path]]:
        """Yields the numbers and folders of checkpoints; the rest of the folder is the user's."""
        if not self.folder.is_dir():
            return
        for path in self.folder.iterdir():
            name = _FOLDER.fullmatch(path.name)
            if name and not path.is_symlink() and path.is_dir() and (_is_marked(path) or _is_older(path)):
                yield int(name[1]), path

    def _make(self, folder: Path) -> None:
        """Creates the folder of a checkpoint with its mark, atomically and durably, unless it exists."""
        if not folder.is_symlink() and _is_marked(folder):
            return
        half_made = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.tmp")
        make_folder(self.folder)
        half_made.mkdir(mode=0o700)
        try:
            write_atomically(half_made / MARK, _MARKED + self._run.encode() + b"\n")
            os.rename(half_made, folder)
        except OSError as error:
            with contextlib.suppress(OSError):  # the first error is the one to report
                _remove(half_made)
            if not folder.is_symlink() and _is_marked(folder):
                return  # another shard was faster
            if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                raise FileExistsError(
                    error.errno, f"{folder} is there already and is no checkpoint; move it away"
                ) from error
            raise
        sync_folder(self.folder)


def shard_pieces(
    record: ShardRecord, slots: Sequence[Slot], snapshot: ShardSnapshot
) -> Iterator[bytes | memoryview]:
    """Yields the bytes of the file of a shard, see `Checkpoints.write_shard`."""
    tensors: dict[str, Vector] = {}
    for kind, vector in snapshot.vectors.items():
        tensors |= {tensor_key(kind, slot): piece for slot, piece in split(slots, vector)}
    return pieces_of(tensors, encode_record(record))


def _written(folder: Path) -> object:
    """Returns what changes when a file of a checkpoint is written. Raises OSError."""
    found = ((path.name, path.lstat()) for path in sorted(folder.iterdir()))
    return [(name, one.st_ino, one.st_size, one.st_mtime_ns, one.st_ctime_ns) for name, one in found]


def _is_marked(folder: Path) -> bool:
    """Returns whether a run created this folder."""
    try:
        return read_plain(folder / MARK, at_most=_MARK_BYTES).startswith(_MARKED)
    except (OSError, ValueError):
        return False


def _is_older(folder: Path) -> bool:
    """Returns whether a folder is a checkpoint from before there were marks: read, and never removed."""
    try:
        decode_manifest(read_plain(folder / MANIFEST, at_most=MANIFEST_BYTES))
    except (OSError, ValueError):
        return False
    return True


def _remove(folder: Path) -> None:
    """Removes a checkpoint's own files, and its folder unless that contains something else.

    The manifest is removed first and the mark last: an interrupted removal leaves an incomplete checkpoint,
    not a damaged one, and the next removal completes it.
    """
    if os.path.lexists(folder / MANIFEST):
        (folder / MANIFEST).unlink(missing_ok=True)
        sync_folder(folder)  # else a power loss may bring back the manifest alone
    for path in list(folder.iterdir()):
        if _FILE.fullmatch(path.name):
            path.unlink()
    (folder / MARK).unlink(missing_ok=True)
    try:
        folder.rmdir()
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:
            raise
