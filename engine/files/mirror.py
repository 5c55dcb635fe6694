"""Checkpoints at a URL: each is sent when it is complete, and fetched when it is read.

A folder of this machine has the manifests of all checkpoints, and the files of those that this run has
written or read. The manifest is sent last, so a checkpoint at the URL is complete or none. With it goes the
journal of a batch method, as far as the checkpoint needs it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from typing_extensions import override

from partita.engine.parameters.checkpoint import MANIFEST, MANIFEST_BYTES, MARK, Checkpoints
from partita.engine.parameters.files import make_folder, read_plain
from partita.engine.parameters.layout import Shape
from partita.engine.parameters.manifest import SHARD_FILE, CheckpointError, Manifest, decode_manifest
from partita.engine.parameters.reader import Checkpoint, Fetch
from partita.engine.parameters.slots import Slot

_FOLDER: Final = re.compile(r"\d{8,18}(?:-\w{1,8})?", flags=re.ASCII)
_BESIDE: Final = re.compile(r"journal|start-\w{1,8}\.safetensors", flags=re.ASCII)
_PROBE: Final = ".partita-probe"


class UrlFolder:
    """A folder at a URL, by fsspec. Whatever its package raises is an OSError that names the URL."""

    def __init__(self, url: str) -> None:
        """Connects to nothing yet.

        Raises:
            ValueError: fsspec, or the package for such URLs, is not installed, or the URL is none.
        """
        self.url: Final = url
        try:
            core: Any = import_module("fsspec.core")
        except ModuleNotFoundError:
            raise ValueError(
                f"checkpoints at {url} need the package fsspec: pip install 'partita[stores]'"
            ) from None
        try:
            self._system, root = core.url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise ValueError(f"checkpoints cannot be kept at {url}: {error}") from error
        self._root: Final = str(root).rstrip("/")

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise OSError(f"{self.url}: {str(error) or type(error).__name__}") from error

    def check(self) -> None:
        """Writes a file and removes it. Raises OSError."""
        with self._named():
            self._system.makedirs(self._root, exist_ok=True)
            self._system.pipe_file(self._path(_PROBE), b"partita")
            self._system.rm_file(self._path(_PROBE))

    def names(self, folder: str = "") -> list[str]:
        """Returns the names in a folder; none if it is missing. Raises OSError."""
        with self._named():
            self._system.invalidate_cache()
            try:
                found = self._system.ls(self._path(folder), detail=False)
            except FileNotFoundError:
                return []
            return sorted(str(path).rstrip("/").rpartition("/")[2] for path in found)

    def get(self, name: str, to: Path) -> None:
        """Fetches a file. Raises OSError."""
        temporary = to.with_name(f".{to.name}.part")
        with self._named():
            self._system.get_file(self._path(name), str(temporary))
        temporary.replace(to)

    def put(self, path: Path, name: str) -> None:
        """Sends a file. Raises OSError."""
        with self._named():
            self._system.makedirs(self._path(name.rpartition("/")[0]), exist_ok=True)
            self._system.put_file(str(path), self._path(name))

    def put_bytes(self, data: bytes, name: str) -> None:
        """Sends a small file. Raises OSError."""
        with self._named():
            self._system.makedirs(self._path(name.rpartition("/")[0]), exist_ok=True)
            self._system.pipe_file(self._path(name), data)

    def remove(self, folder: str) -> None:
        """Removes a checkpoint: its manifest first. Raises OSError."""
        names = self.names(folder)
        own = [name for name in names if name in (MANIFEST, MARK) or SHARD_FILE.fullmatch(name)]
        with self._named():
            for name in sorted(own, key=lambda name: (name != MANIFEST, name == MARK)):
                self._system.rm_file(self._path(f"{folder}/{name}"))
            if own == names and self._system.exists(self._path(folder)):
                self._system.rmdir(self._path(folder))

    def remove_file(self, name: str) -> None:
        """Removes a file. Raises OSError."""
        with self._named():
            self._system.rm_file(self._path(name))

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root


class MirroredCheckpoints(Checkpoints):
    """The checkpoints at a URL, and a folder of this machine in which they come together."""

    def __init__(self, folder: Path, remote: UrlFolder, *, keep: int = 3, run: str = "") -> None:
        """Fetches the manifests, and what lies beside the checkpoints.

        Raises:
            OSError: the URL cannot be read.
            ValueError: see `Checkpoints`.
        """
        super().__init__(folder, keep=keep, run=run)
        self._remote: Final = remote
        self._sent: set[str] = set()
        make_folder(folder)
        for name in remote.names():
            if _BESIDE.fullmatch(name) and not (folder / name).exists():
                remote.get(name, folder / name)
            elif _FOLDER.fullmatch(name) and not (folder / name / MARK).exists():
                self._fetch_manifest(name)

    def _fetch_manifest(self, name: str) -> None:
        if not {MANIFEST, MARK} <= set(self._remote.names(name)):
            return  # it was never complete
        local = self.folder / name
        local.mkdir(mode=0o700, exist_ok=True)
        for file in (MARK, MANIFEST):
            self._remote.get(f"{name}/{file}", local / file)

    @override
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
        """Opens a checkpoint after fetching its files, see `Checkpoints.open`."""
        folder = self.path(number)

        def fetch_file(file: str, whole: bool) -> None:
            if not (folder / file).exists():
                try:
                    self._remote.get(f"{folder.name}/{file}", folder / file)
                except OSError as error:
                    raise CheckpointError(f"{file} cannot be fetched ({error})") from error

        return super().open(number, shapes, network=network, slots=slots, skipped=skipped, fetch=fetch_file)

    @override
    def commit(self, manifest: Manifest) -> None:
        """Sends a checkpoint, its manifest last, and completes the folder of this machine.

        Raises:
            CheckpointError, OSError: see `Checkpoints.commit`; or the URL cannot be written.
        """
        folder, data = self.checked(manifest)
        for path in self.folder.iterdir():
            if _BESIDE.fullmatch(path.name):
                self._send(path, path.name, again=path.name == "journal")
        for file in (MARK, *(entry.file for entry in manifest.entries)):
            self._send(folder / file, f"{folder.name}/{file}")
        self._remote.put_bytes(data, f"{folder.name}/{MANIFEST}")
        super().commit(manifest)

    def _send(self, path: Path, name: str, *, again: bool = False) -> None:
        if again or name not in self._sent:
            self._remote.put(path, name)
            self._sent.add(name)

    @override
    def _is_whole(self, number: int) -> bool:
        """Returns whether all files of a checkpoint are at the URL; they are not fetched to be read."""
        folder = self.path(number)
        try:
            manifest = decode_manifest(read_plain(folder / MANIFEST, at_most=MANIFEST_BYTES))
        except (OSError, ValueError):
            return False
        there = self._remote.names(folder.name)
        return all(file in there for file in (MANIFEST, *(entry.file for entry in manifest.entries)))

    @override
    def prune(self, *, first: int = 0, held: int | None = None) -> None:
        """Removes what `Checkpoints.prune` removes, there as here. Raises OSError."""
        super().prune(first=first, held=held)
        newest = max(self.complete(), default=0)
        for name in self._remote.names():
            number = name.partition("-")[0]
            if _FOLDER.fullmatch(name) and int(number) < newest and not (self.folder / name).exists():
                self._remote.remove(name)
            elif name.startswith("start-") and _BESIDE.fullmatch(name) and not (self.folder / name).exists():
                self._remote.remove_file(name)
