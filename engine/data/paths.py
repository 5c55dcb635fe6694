"""Files by pattern, and the sentences where one of them cannot be read."""

from __future__ import annotations

import glob
import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from partita.engine.data.dataset import DataError

_SHOWN: Final = 3


def files_of(pattern: str | Path | Sequence[str | Path]) -> tuple[str, ...]:
    """Returns the absolute paths of files, in the order of their names.

    Args:
        pattern: as `shards/*.npz`, where `**` stands for folders in any depth; or paths, whose order is kept.

    Raises:
        DataError: there is none.
    """
    if not isinstance(pattern, str | Path):
        return tuple(os.path.abspath(one) for one in pattern)
    found = sorted(one for one in glob.glob(str(pattern), recursive=True) if os.path.isfile(one))
    if not found:
        raise DataError(
            f"no file is called {str(pattern)!r} in {os.getcwd()}; give a pattern of files, as 'shards/*.npz'"
        )
    return tuple(map(os.path.abspath, found))


def stamp_of(paths: Sequence[str]) -> str:
    """Returns words that change when the names or sizes of files do. Raises OSError."""
    return " ".join(f"{os.path.basename(path)}:{os.path.getsize(path)}" for path in paths)


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Words what goes wrong when a file is read. Raises DataError."""
    try:
        yield
    except DataError:
        raise
    except FileNotFoundError as error:
        raise DataError(
            f"{path} is not on {platform.node()}; every machine whose hosts read the data needs its files at "
            "the same paths"
        ) from error
    except Exception as error:
        raise DataError(
            f"{path} cannot be read on {platform.node()}: {type(error).__name__}: {error}; write it again"
        ) from error
