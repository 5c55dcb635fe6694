"""Stores of checkpoints: a folder of the coordinator's machine, one that all machines have, or a URL.

Wherever they are kept, the files of a checkpoint come together in a folder of the coordinator's machine, and
the manifest is written last.
"""

from __future__ import annotations

import os
import re
import tempfile
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Final

from typing_extensions import override

from partita.engine.files.mirror import MirroredCheckpoints, UrlFolder
from partita.engine.parameters.checkpoint import Checkpoints
from partita.engine.parameters.files import make_folder

_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


class CheckpointStore(ABC):
    """A place for the checkpoints of a run; its text is what the user gave.

    Attributes:
        is_shared: whether every machine of the run has the folder, by the same path.
    """

    is_shared: ClassVar[bool] = False

    @abstractmethod
    def folder(self, temporary: Path) -> Path:
        """Returns the folder of this machine in which checkpoints come together.

        `temporary` is the run's own, which is removed at its end.
        """

    def check(self, temporary: Path) -> None:
        """Makes the folder, and tries to write in it. Raises OSError."""
        folder = self.folder(temporary)
        try:
            make_folder(folder)
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            raise OSError(
                f"no checkpoint can be written in {folder} ({error.strerror or error}); give another folder"
            ) from error

    def checkpoints(self, temporary: Path, *, run: str = "") -> Checkpoints:
        """Returns the checkpoints, for the coordinator of a run.

        Raises:
            OSError, ValueError: the store cannot be read.
        """
        return Checkpoints(self.folder(temporary), run=run)

    def within(self, name: str) -> CheckpointStore:
        """Returns the store of a folder in this one, for one of several runs that belong together.

        Raises:
            ValueError: the kind of store does not say how, by a method of this name.
        """
        raise ValueError(
            f"{type(self).__name__} has no folders in it; give it a method `within(name)` that returns the "
            "store of one, or give the path of a folder"
        )


@dataclass(frozen=True)
class Folder(CheckpointStore):
    """A folder of the machine that trains. Hosts on other machines send their files to it.

    Args:
        path: of the folder, which is made if it is missing.
    """

    path: str | Path

    @override
    def folder(self, temporary: Path) -> Path:
        return Path(self.path)

    @override
    def within(self, name: str) -> Folder:
        return replace(self, path=Path(self.path) / name)

    def __str__(self) -> str:
        return str(self.path)


@dataclass(frozen=True)
class SharedFolder(Folder):
    """A folder that every machine of the run has by the same path: each host writes its own file there.

    Before the first host is started, each worker of a pool looks for a mark that the run has left in it.

    Args:
        path: of the folder, which is made if it is missing.
    """

    is_shared = True


@dataclass(frozen=True)
class UrlStore(CheckpointStore):
    """A folder that `fsspec` can write: `s3://bucket/run`, `gs://...`, `file:///...`.

    The machine that trains sends every checkpoint there when it is complete, and then its manifest.

    Args:
        url: of the folder.

    Raises:
        ValueError: fsspec, or the package for such URLs, is not installed.
    """

    url: str

    def __post_init__(self) -> None:
        UrlFolder(self.url)

    @override
    def folder(self, temporary: Path) -> Path:
        return temporary / "checkpoints"

    @override
    def check(self, temporary: Path) -> None:
        super().check(temporary)
        UrlFolder(self.url).check()

    @override
    def checkpoints(self, temporary: Path, *, run: str = "") -> Checkpoints:
        return MirroredCheckpoints(self.folder(temporary), UrlFolder(self.url), run=run)

    @override
    def within(self, name: str) -> UrlStore:
        return UrlStore(f"{self.url.rstrip('/')}/{name}")

    def __str__(self) -> str:
        return self.url


def store_of(value: Any) -> CheckpointStore | None:
    """Returns the store that a value of `train(checkpoints=...)` means; None where nothing is kept.

    Raises:
        ValueError: it is none; or of a URL, the package is missing.
    """
    if value is None or isinstance(value, CheckpointStore):
        return value
    if isinstance(value, str) and _URL.match(value):
        return UrlStore(value)
    if isinstance(value, str | os.PathLike):
        return Folder(Path(value))
    raise ValueError(
        f"checkpoints is a {type(value).__name__}; give the path of a folder, a URL, SharedFolder(...) or "
        "another store"
    )
