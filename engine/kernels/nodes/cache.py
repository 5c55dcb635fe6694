"""Keeps what was compiled for a user's functions, so that another process compiles nothing.

Generated text becomes a module in the user's cache folder, named by a hash of all that decides what it is
compiled to; Numba keeps the machine code beside it. Without a folder that can be trusted, or where the disk
fails, a module is compiled for this process alone. The folder may be deleted at any time.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import sys
from collections.abc import Callable
from functools import cache, lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import llvmlite
import numba
import numpy as np
from numba.core.errors import NumbaError

from partita.engine import numerics
from partita.engine.kernels.nodes import tiles
from partita.engine.numerics.cache import cache_folder

Names: TypeAlias = dict[str, Any]


class NotCompiled(Exception):
    """Generated text, or a user's function in it, is not what Numba compiles."""


def ready(text: str, warm: Callable[[Names], None], **given: Any) -> Names:
    """The functions of generated text, compiled, from the cache if they are there.

    Args:
        text: of a module; `compiled` and `compiled_checked` decorate its functions.
        warm: calls them once with arguments of the types that they will have.
        given: names that the text uses and that only this process has; then nothing is kept.

    Raises:
        NotCompiled: it cannot be compiled.
    """
    names = None if given else _from_cache(text, warm)
    if names is None:
        names = _run(text, ModuleType("partita_node"), given, keep=False)
        try:
            warm(names)
        except Exception as error:
            raise NotCompiled from error
    return names


def _from_cache(text: str, warm: Callable[[Names], None]) -> Names | None:
    """As `ready`; None where the cache cannot be used: no such folder, a full disk, a file that is broken."""
    try:
        names = _kept(text)
        warm(names)
    except NumbaError as error:
        raise NotCompiled from error
    except Exception:  # noqa: BLE001 - what broken files make Numba raise can be anything
        return None
    return names


@lru_cache(maxsize=256)
def _kept(text: str) -> Names:
    """Runs a text as a module in the cache folder, where Numba looks for what it has compiled of it."""
    name = f"node_{_digest(text)}"
    path = cache_folder() / f"{name}.py"
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        _write(path, text)
    module = sys.modules[name] = ModuleType(name)  # where Numba looks for what its files name
    module.__file__ = str(path)
    return _run(text, module, {}, keep=True)


def _run(text: str, module: ModuleType, given: Names, *, keep: bool) -> Names:
    options: Names = {"cache": keep, "nogil": True, "error_model": "numpy"}
    names = vars(module)
    names["compiled"] = numba.njit(**options)
    names["compiled_checked"] = numba.njit(boundscheck=True, **options)
    names.update(given)
    exec(compile(text, names.get("__file__", "<generated>"), "exec"), names)
    return names


def _write(path: Path, text: str) -> None:
    """Puts a file into its place whole, whoever else does so at the same time."""
    half = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        half.write_text(text, encoding="utf-8")
        half.replace(path)
    finally:
        half.unlink(missing_ok=True)


def _digest(text: str) -> str:
    return hashlib.sha256((text + _versions()).encode()).hexdigest()[:32]


@cache
def _versions() -> str:
    """What else decides to which code a text is compiled: libraries, and what it imports from here."""
    ours = [
        Path(numerics.__file__).with_name(f"{name}.py") for name in ("compiled", "precision", "functions")
    ]
    imported = "".join(path.read_text(encoding="utf-8") for path in [*ours, Path(tiles.__file__)])
    return "\n".join([sys.version, numba.__version__, llvmlite.__version__, np.__version__, imported])
