"""Packages that only some loggers need."""

from __future__ import annotations

import importlib
from typing import Any


def imported(name: str, command: str) -> Any:
    """Imports a package. Raises ModuleNotFoundError that says how to install it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise ModuleNotFoundError(
            f"the package '{name}' is missing, which this logger writes by; install it: {command}", name=name
        ) from error
