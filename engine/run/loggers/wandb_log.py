"""Figures of a run for Weights & Biases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from typing_extensions import override

from partita.engine.run.callbacks.callback import Control
from partita.engine.run.loggers.figures import Line, Logger
from partita.engine.run.loggers.package import imported


@dataclass
class WandBLog(Logger):
    """Logs each line to a run of W&B; needs `pip install wandb`.

    Args:
        settings: of `wandb.init`, such as `{"project": "digits"}`.
        every_s: see `Logger`.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    _run: Any = field(default=None, init=False, repr=False)

    @override
    def open(self, control: Control) -> None:
        self._run = imported("wandb", "pip install wandb").init(**self.settings)

    @override
    def write(self, line: Line) -> None:
        self._run.log({**line.figures, "epoch": line.epoch, "seconds": line.seconds}, step=line.step)

    @override
    def close(self) -> None:
        if self._run is not None:
            self._run.finish()
            self._run = None
