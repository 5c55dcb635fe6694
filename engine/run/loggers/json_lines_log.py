"""Figures of a run as lines of JSON."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec
from typing_extensions import override

from partita.engine.run.callbacks.callback import Control
from partita.engine.run.loggers.figures import Line, Logger


@dataclass
class JSONLinesLog(Logger):
    """Writes an object in a line: kind, step, epoch, seconds, and each figure by its name.

    A run that goes on with an earlier one adds its lines.

    Args:
        path: of the file.
        every_s: see `Logger`.
    """

    path: str | Path

    @override
    def open(self, control: Control) -> None:
        Path(self.path).parent.mkdir(parents=True, exist_ok=True)

    @override
    def write(self, line: Line) -> None:
        fixed = {"kind": line.kind, "step": line.step, "epoch": line.epoch, "seconds": line.seconds}
        with Path(self.path).open("ab") as file:
            file.write(msgspec.json.encode(fixed | dict(line.figures)) + b"\n")
