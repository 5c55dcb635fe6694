"""Figures of a run as messages of Python's `logging`."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from typing_extensions import override

from partita.engine.run.loggers.figures import Line, Logger


@dataclass
class PythonLog(Logger):
    """Logs a message for each line, with the figures as its argument `figures` for structured handlers.

    Args:
        name: of the logger.
        level: of the messages, such as `logging.INFO`.
        every_s: see `Logger`.
    """

    name: str = "partita"
    level: int = logging.INFO

    @override
    def write(self, line: Line) -> None:
        text = "  ".join(f"{name} {figure:.6g}" for name, figure in line.figures.items())
        logging.getLogger(self.name).log(
            self.level, "%s at step %d: %s", line.kind, line.step, text, extra={"figures": dict(line.figures)}
        )
