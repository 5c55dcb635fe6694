"""Progress in a cell of a notebook: one line of output that is updated in place, without widgets.

It needs nothing beyond the kernel's own IPython, which is never imported where it does not run already.
"""

from __future__ import annotations

import sys
import uuid
from typing import Any, Final


class NotebookLine:
    """A line of text below a cell, which is shown when it has a text first."""

    def __init__(self, display: Any) -> None:
        """`display` is the module `IPython.display`."""
        self._display: Final = display
        self._id: Final = uuid.uuid4().hex
        self._is_shown = False

    @classmethod
    def here(cls) -> NotebookLine | None:
        """Returns the line of the cell that runs, where this process is the kernel of a notebook."""
        package = sys.modules.get("IPython")
        shell = None if package is None else package.get_ipython()
        if getattr(shell, "kernel", None) is None:  # a terminal of IPython has none
            return None
        from IPython import display  # type: ignore[import-not-found, unused-ignore]

        return cls(display)

    def update(self, text: str) -> None:
        """Shows another text in the place of the last one."""
        settings = {"raw": True, "display_id": self._id}
        if self._is_shown:
            self._display.update_display({"text/plain": text}, **settings)
        else:
            self._is_shown = True
            self._display.display({"text/plain": text}, **settings)
