"""The temporary folder of a run: the data and the first parameters, where every host can read them.

It is removed at the end of the run. The next run on this computer removes the folders of killed runs: those
in which a run of this user wrote its name, and whose process is dead.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from partita.engine.parameters.folder_lock import lock_abandoned, lock_folder

_PREFIX: Final = "partita-"


@contextmanager
def temporary_folder(what: str) -> Iterator[Path]:
    """Makes the folder of a run, and removes it at the end.

    Args:
        what: the command or the call, as messages to others name it.

    Raises:
        OSError: the folder cannot be made.
    """
    _remove_abandoned()
    with tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary)
        with lock_folder(folder, what):
            yield folder


def _remove_abandoned() -> None:
    """Removes the folders of runs that were killed. What cannot be removed stays for the next run."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        if _is_own(folder):
            with lock_abandoned(folder) as abandoned:
                if abandoned:
                    shutil.rmtree(folder, ignore_errors=True)


def _is_own(folder: Path) -> bool:
    """Whether the path is a folder, no link, of this user."""
    try:
        return not folder.is_symlink() and folder.is_dir() and folder.stat().st_uid == os.getuid()
    except OSError:  # it has just been removed
        return False
