"""Ids by which the processes of one run ask a pool for places, in a folder that each of them has locked.

    FOLDER/.partita.runs        the ids, the newest last; removed when the run has left the pool

A process that is killed leaves its id there. The next one holds the lock of the folder, so the one before is
dead, and names its id to the registry, which compares their keys.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from partita.engine.parameters.files import read_plain, write_atomically

_IDS: Final = ".partita.runs"
_MOST: Final = 16
_MOST_BYTES: Final = 1 << 16


@contextmanager
def run_ids(folder: Path | None) -> Iterator[tuple[str, ...]]:
    """Yields ids of a run, that of this process last.

    Args:
        folder: its lock is held; None: no process goes on with the run.

    Raises:
        OSError: the folder cannot be written.
    """
    own = secrets.token_hex(16)
    if folder is None:
        yield (own,)
        return
    ids = (*_read(folder / _IDS), own)[-_MOST:]
    write_atomically(folder / _IDS, msgspec.json.encode(ids))
    yield ids
    (folder / _IDS).unlink(missing_ok=True)  # not after an error: the run may not have left the pool


def _read(path: Path) -> tuple[str, ...]:
    try:
        return msgspec.json.decode(read_plain(path, at_most=_MOST_BYTES), type=tuple[str, ...])
    except (OSError, ValueError):  # missing, or not written by a run
        return ()
