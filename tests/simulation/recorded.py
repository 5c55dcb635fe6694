"""Real writers on a simulated disk: what they ask of the operating system is carried out there, too.

While `Recorder.installed()` lasts, each call that changes something below a real folder is repeated in a
`FileSystem`. After each one the power may fail: what may then be left is written to a folder of its own,
where the real readers must find what was promised.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from partita.engine.testing.filesystem import FileSystem

CALLS = (
    *("open", "close", "write", "writev", "pwrite", "pwritev", "ftruncate", "lseek"),
    *("fsync", "fdatasync", "replace", "rename", "unlink", "mkdir", "rmdir"),
)


class Recorder:
    """Repeats the calls of this process below `root` in a file system.

    Attributes:
        files: the file system.
        changed: called after each change.
        ignored: of "files" and "folders", what is not synced when that is asked for: a planted fault.
    """

    def __init__(self, root: Path, files: FileSystem | None = None) -> None:
        """Begins with what `files` holds, which is written to the real folder; None: with nothing."""
        self.root, self.files = root, files or FileSystem()
        written(self.files, root)
        self.changed: Callable[[], None] = lambda: None
        self.ignored: set[str] = set()
        self._descriptors: dict[int, list[Any]] = {}  # number, offset, path
        self._real = {name: getattr(os, name) for name in CALLS}

    def _path(self, path: Any) -> str | None:
        try:
            found = Path(path).relative_to(self.root).as_posix()
        except (TypeError, ValueError):
            return None
        return "" if found == "." else found

    def _wrap(self, name: str) -> Callable[..., Any]:
        real, repeat = self._real[name], getattr(self, f"_{name}")

        def call(*arguments: Any, **options: Any) -> Any:
            result = None if "sync" in name else real(*arguments, **options)  # no test needs a real one
            before = self.files.changes
            repeat(result, *arguments)
            if self.files.changes != before:
                self.changed()
            return result

        return call

    @contextmanager
    def installed(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            for name in CALLS:
                patch.setattr(os, name, self._wrap(name))
            yield

    def _offset(self, descriptor: int, n_bytes: int) -> tuple[int, int] | None:
        if descriptor not in self._descriptors:
            return None
        known = self._descriptors[descriptor]
        at, known[1] = known[1], known[1] + n_bytes
        return known[0], at

    def _put(self, place: tuple[int, int] | None, data: bytes) -> None:
        if place is not None and data:
            self.files.write(*place, data)

    # The calls.

    def _open(self, descriptor: int, path: Any, flags: int, *_: Any) -> None:
        inside = self._path(path)
        if inside is None:
            return
        number = self.files.number(inside)
        if number is None:
            number = self.files.create(inside)
        elif flags & os.O_TRUNC:
            self.files.truncate(number, 0)
        at = len(self.files.read(inside) or b"") if flags & os.O_APPEND else 0
        self._descriptors[descriptor] = [number, at, inside]

    def _close(self, _: None, descriptor: int) -> None:
        self._descriptors.pop(descriptor, None)

    def _write(self, n_bytes: int, descriptor: int, data: Any) -> None:
        self._put(self._offset(descriptor, n_bytes), _bytes(data)[:n_bytes])

    def _writev(self, n_bytes: int, descriptor: int, buffers: Any) -> None:
        self._write(n_bytes, descriptor, b"".join(map(_bytes, buffers)))

    def _pwrite(self, n_bytes: int, descriptor: int, data: Any, at: int) -> None:
        if descriptor in self._descriptors:
            self._put((self._descriptors[descriptor][0], at), _bytes(data)[:n_bytes])

    def _pwritev(self, n_bytes: int, descriptor: int, buffers: Any, at: int, *_: Any) -> None:
        self._pwrite(n_bytes, descriptor, b"".join(map(_bytes, buffers)), at)

    def _ftruncate(self, _: None, descriptor: int, size: int) -> None:
        if descriptor in self._descriptors:
            self.files.truncate(self._descriptors[descriptor][0], size)

    def _lseek(self, at: int, descriptor: int, *_: int) -> None:
        if descriptor in self._descriptors:
            self._descriptors[descriptor][1] = at

    def _fsync(self, _: None, descriptor: int) -> None:
        if descriptor in self._descriptors:
            number, _, path = self._descriptors[descriptor]
            is_folder = path == "" or self.files.is_folder(path)
            if is_folder and "folders" not in self.ignored:
                self.files.sync_folder(path)
            elif not is_folder and "files" not in self.ignored:
                self.files.sync(number)

    _fdatasync = _fsync

    def _rename(self, _: None, old: Any, new: Any) -> None:
        inside, target = self._path(old), self._path(new)
        if inside is not None and target is not None:
            self.files.rename(inside, target)

    _replace = _rename

    def _unlink(self, _: None, path: Any, **__: Any) -> None:
        inside = self._path(path)
        if inside is not None:
            self.files.remove(inside)

    _rmdir = _unlink

    def _mkdir(self, _: None, path: Any, *__: Any) -> None:
        inside = self._path(path)
        if inside is not None:
            self.files.mkdir(inside)


def _bytes(data: Any) -> bytes:
    return bytes(memoryview(data).cast("B"))


def written(files: FileSystem, folder: Path) -> Path:
    """Writes everything in a file system to a new folder, and returns that."""
    folder.mkdir()
    for path, data in files.walk():
        if data is None:
            (folder / path).mkdir()
        else:
            (folder / path).write_bytes(data)
    return folder
