"""The peak of this process's resident memory, as Linux keeps it.

It is read before the network is made too, which separates the memory of the interpreter and its imports from
that of a training.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self


@dataclass(frozen=True)
class Peak:
    """Peaks of resident memory, in bytes.

    Args:
        whole: the peak since the process began.
        imports: what was resident before there was a network.
        steps: the peak since the first steps were over.
    """

    whole: int
    imports: int
    steps: int

    @property
    def net(self) -> int:
        """Without the interpreter and the imports."""
        return self.whole - self.imports

    @classmethod
    def of(cls, answer: dict[str, int]) -> Self:
        """Parses the text of `Meter.read`."""
        return cls(**answer)


class Meter:
    """Made when everything is imported; `mark` when the first steps are over."""

    def __init__(self) -> None:
        self._imports = _status("VmRSS")
        self._before = 0

    def mark(self) -> None:
        """Starts a new peak, that of steps."""
        self._before = max(self._before, _status("VmHWM"))
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")

    def read(self) -> dict[str, int]:
        """A `Peak` as JSON knows it."""
        steps = _status("VmHWM")
        return asdict(Peak(max(self._before, steps), self._imports, steps))


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    found = next(line for line in lines if line.startswith(f"{field}:"))
    return 1024 * int(found.split()[1])
