"""Watches which computation each kernel thread runs, and since when: one that never ends is named.

Compiled code runs without Python's lock, so the host goes on beside a function of a user's that loops for
ever; and its stack shows no line of that function, so the instruction is what names it.
"""

from __future__ import annotations

import faulthandler
import tempfile
import threading
from collections.abc import Callable
from typing import Final

from partita.engine.runtime.task import NeverEnds

_COUNTED_S: Final = 1.0
"""The most seconds that count between two checks: a host that was stopped meanwhile has not computed."""
_LINES, _COLUMNS = 40, 160
"""The part of the stacks that is kept."""


class Watchdog:
    """The computations that run now. `begin` and `end` are for kernel threads, `check` for one other."""

    def __init__(self, describe: Callable[[int], str]) -> None:
        """No computation runs; `describe` names the instruction at a position."""
        self._describe = describe
        self._now: dict[int, tuple[int, object]] = {}
        self._ages: dict[int, tuple[object, float]] = {}
        self._checked_at = float("inf")

    def begin(self, position: int) -> None:
        """Notes that this thread begins a computation."""
        self._now[threading.get_ident()] = position, object()

    def end(self) -> None:
        """Notes that this thread has ended its computation."""
        del self._now[threading.get_ident()]

    def check(self, now: float, limit_s: float) -> None:
        """Checks the running computations; to be called often.

        Args:
            now: seconds, monotonic.
            limit_s: seconds that a computation may take.

        Raises:
            NeverEnds: one of them takes longer.
        """
        passed_s = min(max(now - self._checked_at, 0.0), _COUNTED_S)
        self._checked_at = now
        ages: dict[int, tuple[object, float]] = {}
        for thread, (position, token) in list(self._now.items()):
            before, age_s = self._ages.get(thread, (None, 0.0))
            ages[thread] = token, age_s + passed_s if before is token else 0.0
            if ages[thread][1] >= limit_s:
                what = f"{self._describe(position)} has not ended for {ages[thread][1]:.0f} s"
                raise NeverEnds(
                    f"{what}; look for a loop without an end in the layer's functions, or allow more by "
                    "instruction_timeout_s (--instruction-timeout)",
                    stacks(),
                )
        self._ages = ages


def stacks() -> str:
    """The Python stacks of all threads, the innermost line first."""
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        lines = file.read().decode(errors="replace").splitlines()
    return "\n".join(line[:_COLUMNS] for line in lines[:_LINES]) + "\n"
