"""The user's folder of caches: nothing in it is lost that cannot be computed again."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from platformdirs import user_cache_path


def cache_folder(name: str = "") -> Path:
    """Finds the folder, and makes it if it is missing: `$XDG_CACHE_HOME/partita` on Linux, or
    `~/.cache/partita`.

    Only its owner may read it, because code that is kept there is run.

    Args:
        name: of a folder in it; itself if not given.

    Raises:
        OSError: it cannot be made.
        PermissionError: it is another user's, or others may write to it.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    if base and not os.path.isabs(base):  # the standard ignores other paths
        folder = Path.home() / ".cache" / "partita"
    else:
        folder = user_cache_path("partita", appauthor=False)
    _made(folder)
    return _made(folder / name) if name else folder


def _made(folder: Path) -> Path:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if found.st_uid != os.getuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(
            f"the cache folder {folder} can be changed by other users, so that nothing in it is trusted; "
            "make it yours alone: chmod 700"
        )
    return folder
