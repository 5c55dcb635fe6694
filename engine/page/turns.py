"""Whose turn it is to be sent news: with many browsers, each has its turn less often."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

SHOW_EVERY_S: Final = 1.0
"""Seconds from one look to the next."""
_TABS_A_S: Final = 4.0
"""Browsers that are sent news in a second."""


class Turn:
    """The turns of one browser."""

    def __init__(self) -> None:
        """The first look is its turn."""
        self._next_s = 0.0
        self._waited_for: frozenset[str] = frozenset()

    def is_now(self, now_s: float, *, browsers: int, waited_for: Collection[str], is_over: bool) -> bool:
        """Returns whether the browser is sent news at a look: it has its turn, or cannot wait for that.

        Args:
            now_s: seconds, monotonic.
            browsers: that are open.
            waited_for: hosts that others wait for; news are sent where these are others than before.
            is_over: whether the run has ended.
        """
        before, self._waited_for = self._waited_for, frozenset(waited_for)
        if now_s < self._next_s and self._waited_for == before and not is_over:
            return False
        self._next_s = now_s + browsers / _TABS_A_S - SHOW_EVERY_S / 2
        return True
