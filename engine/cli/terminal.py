"""The terminal that a command writes to."""

from __future__ import annotations

import shutil


def terminal_width() -> int | None:
    """Columns of the terminal, or what COLUMNS says; None where standard output is no terminal."""
    return shutil.get_terminal_size((0, 0)).columns or None
