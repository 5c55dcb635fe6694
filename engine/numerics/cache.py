"""The folder in which this user keeps what costs time to find out again, and nothing that cannot be."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """The folder, made if it is missing: `$XDG_CACHE_HOME/partita`, or `~/.cache/partita`.

    Only its owner may look into it, because code that is kept there is run.

    Raises:
        OSError: it cannot be made.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    above = Path(base) if os.path.isabs(base) else Path.home() / ".cache"  # the standard ignores other paths
    folder = above / "partita"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder
