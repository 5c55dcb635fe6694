"""Public names of a package that are imported when they are first used.

A package's `__init__` shows the names that users import from it. An idle worker of a pool needs few modules
of the engine, and none of those that take a second and many MiB to import; but whoever imports a module runs
the `__init__` of each package above it.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


def names_of(package: str, file: str) -> Callable[[str], Any]:
    """Returns the `__getattr__` of a package whose imports stand under `if TYPE_CHECKING:`.

    The imports are written once, where the type checker and readers look for them.

    Args:
        package: name of the package, `__name__`.
        file: its `__init__`, `__file__`.
    """
    found: dict[str, str] = {}

    def look_up(name: str) -> Any:
        if not found:
            found.update(_imports_in(file))
        if name not in found:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        value = getattr(import_module(found[name]), name)
        setattr(sys.modules[package], name, value)  # the next time it is there
        return value

    return look_up


def _imports_in(file: str) -> dict[str, str]:
    """Returns the module of each name that is imported under `if TYPE_CHECKING:`."""
    tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    blocks = (
        node
        for node in tree.body
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    )
    statements = (one for block in blocks for one in block.body if isinstance(one, ast.ImportFrom))
    return {alias.name: one.module or "" for one in statements for alias in one.names}
