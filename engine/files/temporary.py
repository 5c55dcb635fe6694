"""The temporary folder of a run: the data and the first parameters, where every host can read them.

It is removed at the end of the run. The next run on this computer removes the folders of killed runs: those
in which a run of this user wrote its name, or nothing yet, and whose process is dead.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from partita.engine.parameters.folder_lock import FolderInUse, clear_folder, lock_abandoned, lock_folder

_PREFIX: Final = "partita-run-"
_TRIES: Final = 100


@contextmanager
def temporary_folder(what: str) -> Iterator[Path]:
    """Makes the folder of a run, and removes it at the end.

    Args:
        what: the command or the call, as messages to others name it.

    Raises:
        OSError: the folder cannot be made.
    """
    _remove_abandoned()
    with ExitStack() as stack:
        folder = _made(what, stack)
        try:
            yield folder
        finally:
            clear_folder(folder)  # its holder stays until nothing else is there
            stack.close()
            shutil.rmtree(folder, ignore_errors=True)


def _made(what: str, stack: ExitStack) -> Path:
    """Makes a folder and locks it. One that is new is empty, and another run may take it for abandoned."""
    for _ in range(_TRIES):
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        with suppress(FolderInUse, FileNotFoundError):
            stack.enter_context(lock_folder(folder, what))
            return folder
    raise FileExistsError(f"{tempfile.gettempdir()}: others remove the folders that are made there")


def _remove_abandoned() -> None:
    """Removes the folders of runs that were killed. What cannot be removed stays for the next run."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        if _is_own(folder):
            with lock_abandoned(folder) as abandoned:
                if abandoned:
                    clear_folder(folder)
                    shutil.rmtree(folder, ignore_errors=True)


def _is_own(folder: Path) -> bool:
    """Returns whether the path is a folder, no link, of this user."""
    try:
        return not folder.is_symlink() and folder.is_dir() and folder.stat().st_uid == os.getuid()
    except OSError:  # it has just been removed
        return False
