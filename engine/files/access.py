"""Files of the coordinator's machine, as a host opens them: by their paths where it has them, else over the
network.

A host has a folder of the coordinator if the mark is there that the run has left in it: the same machine, or
a folder that machines share.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Final, Protocol

import msgspec
import numpy as np
from typing_extensions import override

from partita.engine.files.connection import FileConnection, FilesUnavailable
from partita.engine.files.copies import SparseCopy
from partita.engine.files.fetched import FetchedArray
from partita.engine.files.push_log import PushLog
from partita.engine.files.remote_checkpoints import CheckpointFiles, RemoteCheckpoints, fetch_header
from partita.engine.files.sources import ArrayFile, Rows
from partita.engine.parameters.checkpoint import Checkpoints
from partita.engine.parameters.files import load_parameters
from partita.engine.parameters.layout import Shape
from partita.engine.parameters.vector import Vector
from partita.engine.protocol.file_messages import PushRecord
from partita.engine.protocol.messages import Peer
from partita.engine.protocol.names import FILES, shard_name, stream_name
from partita.engine.transport.mailbox import Mailbox

_HEADER_BYTES: Final = 8


class FilesAddress(msgspec.Struct, frozen=True):
    """The files of a run, for hosts that may be on other machines.

    Args:
        server: the host `files`.
        folder: temporary folder of the run.
        checkpoints: folder for checkpoints.
        mark: name and content of a file in both.
    """

    server: Peer
    folder: str
    checkpoints: str
    mark: str

    def has(self, folder: str) -> bool:
        """Returns whether this machine has a folder of the coordinator's."""
        try:
            return (Path(folder) / self.mark).read_text(encoding="ascii") == self.mark
        except (OSError, UnicodeDecodeError):
            return False


@contextlib.contextmanager
def marked(folders: Collection[Path], mark: str) -> Iterator[tuple[str, ...]]:
    """Leaves a mark in each folder while the run lasts, and yields the paths. Raises OSError."""
    paths = [folder.resolve() / mark for folder in folders]
    try:
        for path in paths:
            path.write_text(mark, encoding="ascii")
        yield tuple(map(str, paths))
    finally:
        for path in paths:
            path.unlink(missing_ok=True)


class NotesPushes(Protocol):
    """A log of acknowledged pushes."""

    def note(self, stream: str, record: PushRecord) -> None:
        """Replaces a stream's record."""

    def close(self) -> None:
        """Closes the log, which stays."""


class HostFiles:
    """Files of a machine that the host has by their paths.

    Attributes:
        has_paths: whether other processes of this machine can open the data by its paths, too.
    """

    has_paths: bool = True

    def array(self, file: ArrayFile) -> Rows:
        """Opens an array. Hosts of one machine share its memory, and read what they need."""
        return np.memmap(file.path, file.dtype, mode="r", offset=file.offset, shape=file.shape)

    def parameters(
        self, path: Path, shapes: Mapping[str, Shape], *, only: Collection[str]
    ) -> dict[str, Vector]:
        """Reads whole parameters from the file of a run's first ones. Raises ValueError, OSError."""
        return load_parameters(path, shapes, only=only)

    def checkpoints(self, folder: Path, *, run: str) -> CheckpointFiles:
        """Opens the checkpoints in a folder, for a host of this run."""
        return Checkpoints(folder, run=run)

    def log_folder(self, folder: Path) -> Path | None:
        """Returns where shards of this machine keep their logs: the folder of checkpoints, or one on this
        machine that outlives a host, but not the run; None where there is neither.
        """
        return folder

    def push_log(
        self, folder: Path, part: str, incarnation: int, *, shards: int, fragments: int = 1
    ) -> NotesPushes:
        """Makes the log of acknowledged pushes of a process of a part. Raises OSError."""
        return PushLog(folder, part, incarnation, shards=shards, fragments=fragments)

    def waits(self, now: float) -> tuple[tuple[str, str], ...]:
        """Returns (host, what) of everything that threads wait for, `now` being seconds (monotonic)."""
        return ()

    def close(self) -> None:
        """Ends the threads, and removes what only this process has used."""


class RemoteFiles(HostFiles):
    """Files of the coordinator's machine, for a host that may be on another one."""

    def __init__(
        self,
        address: FilesAddress,
        name: str,
        *,
        mailbox: Callable[[], Mailbox],
        scratch: Path | None,
        on_wait: Callable[[], None] = lambda: None,
    ) -> None:
        """Opens nothing yet.

        Args:
            address: of the files.
            name: of the host.
            mailbox: opens one for a connection to `files`, with the host's own keys.
            scratch: folder of copies that all hosts of the run on this machine use; None: a temporary one.
            on_wait: called about twice a second while a thread waits.
        """
        self.on_wait = on_wait
        self._address, self._name, self._mailbox = address, name, mailbox
        self._scratch = scratch
        self._has_folder: Final = address.has(address.folder)
        self.has_paths = self._has_folder
        self._has_checkpoints: Final = address.has(address.checkpoints)
        self._connection: FileConnection | None = None
        self._private: Path | None = None
        self._arrays: list[tuple[str, SparseCopy]] = []

    @override
    def array(self, file: ArrayFile) -> Rows:
        if self._has_folder:
            return super().array(file)
        name = f"data/{file.name}"
        copy = self._copy(name, (self._scratch or self._own()) / f"{file.name.encode().hex()}.data")
        self._arrays.append((file.name, copy))
        return FetchedArray(copy, file.shape, np.dtype(file.dtype), offset=file.offset)

    @override
    def parameters(
        self, path: Path, shapes: Mapping[str, Shape], *, only: Collection[str]
    ) -> dict[str, Vector]:
        if self._has_folder and self._has_checkpoints:  # it may be in either
            return super().parameters(path, shapes, only=only)
        local = self._own() / "initial.safetensors"
        copy = self._copy(f"initial/{path.name}", local)
        fetch_tensors(copy, only)
        try:
            return load_parameters(local, shapes, only=only)
        finally:
            copy.remove()

    @override
    def checkpoints(self, folder: Path, *, run: str) -> CheckpointFiles:
        if self._has_checkpoints:
            return super().checkpoints(folder, run=run)
        write = self._connected().write
        return RemoteCheckpoints(self._own() / "checkpoints", copy=self._copy, write=write)

    @override
    def log_folder(self, folder: Path) -> Path | None:
        if self._has_checkpoints:
            return super().log_folder(folder)
        return None if self._scratch is None else self._scratch / "logs"

    @override
    def push_log(
        self, folder: Path, part: str, incarnation: int, *, shards: int, fragments: int = 1
    ) -> NotesPushes:
        if self._has_folder:
            return super().push_log(folder, part, incarnation, shards=shards, fragments=fragments)
        last = stream_name(shard_name(shards - 1), fragments - 1)
        return _RemotePushLog(self._connected(), incarnation, last)

    @override
    def waits(self, now: float) -> tuple[tuple[str, str], ...]:
        return tuple(
            (FILES, f"examples of '{name}'") for name, copy in self._arrays if copy.waits_since is not None
        )

    @override
    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        for _, copy in self._arrays:
            copy.close()
        if self._private is not None:
            shutil.rmtree(self._private, ignore_errors=True)

    def _connected(self) -> FileConnection:
        if self._connection is None:
            self._connection = FileConnection(
                self._mailbox(), self._name, self._address.server, on_wait=lambda: self.on_wait()
            )
        return self._connection

    def _copy(self, name: str, path: Path) -> SparseCopy:
        connection = self._connected()
        return SparseCopy(connection, name, path, n_bytes=connection.size(name))

    def _own(self) -> Path:
        if self._private is None:
            self._private = Path(tempfile.mkdtemp(prefix="partita-host-", dir=self._scratch))
        return self._private


def fetch_tensors(copy: SparseCopy, only: Collection[str]) -> None:
    """Fetches the header of a safetensors file, and these tensors.

    Raises:
        FilesUnavailable: the file is none, or cannot be fetched.
    """
    end = fetch_header(copy)
    with copy.path.open("rb") as file:
        file.seek(_HEADER_BYTES)
        try:
            header = msgspec.json.decode(file.read(end - _HEADER_BYTES))
            places = [one["data_offsets"] for name, one in header.items() if name in only]
            for start, stop in places:
                copy.ensure_bytes(end + start, min(end + stop, copy.n_bytes))
        except (msgspec.MsgspecError, KeyError, TypeError, ValueError) as error:
            raise FilesUnavailable(f"the first parameters are no safetensors file ({error})") from error


class _RemotePushLog:
    """The acknowledged pushes of a process of a part, kept by the coordinator's machine."""

    def __init__(self, connection: FileConnection, incarnation: int, last: str) -> None:
        self._connection = connection
        self.note(last, PushRecord(incarnation, 0))  # so there are records of all streams

    def note(self, stream: str, record: PushRecord) -> None:
        """Replaces a stream's record."""
        self._connection.note(stream, record)

    def close(self) -> None:
        """Does nothing: the log stays there."""
