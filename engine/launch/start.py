"""Starts every process of a run: binds it to its parent, and only then imports what it needs.

A process that outlives its parent must not spend processor time, so this file is run by its path: `-m` would
import the whole package before the first line. Nothing but the standard library may be imported at its top.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Final, Literal, TypeAlias

Kind: TypeAlias = Literal["host", "template"]

WORKER: Final = "partita.engine.launch.worker"
"""The module that a process runs once it is bound to its parent, by name: it imports this module."""

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_NAME: Final = 15


def command(kind: Kind, name: str) -> list[str]:
    """The command line of a process whose parent is this one. The name is shown in lists of processes."""
    # Without -P, modules of the current folder would hide those of others.
    return [sys.executable, "-P", str(Path(__file__).resolve()), kind, str(os.getpid()), name]


def die_with_parent(parent: int) -> None:
    """Asks the kernel to kill this process when its parent's thread ends; ends at once if it already has."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        raise SystemExit("the process that started this one is gone")


def set_name(name: str) -> None:
    """Renames this process in `ps` and `top`, which show 15 bytes of a name."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode()[:15])


def main() -> None:
    """Runs the process that the command line names."""
    kind, parent, name = sys.argv[1:]
    die_with_parent(int(parent))
    set_name(name)
    if kind == "template":
        gc.disable()  # nearly all objects of imports stay; the template collects again when it serves
        with _without_threads():
            worker = import_module(WORKER)
        worker.template()
    else:
        import_module(WORKER).main()


@contextmanager
def _without_threads() -> Iterator[None]:
    """Keeps NumPy's BLAS from starting threads when it is imported: a process with threads cannot be forked
    safely.

    A host sets the number of threads of its role later.
    """
    name = "OPENBLAS_NUM_THREADS"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


if __name__ == "__main__":
    main()
