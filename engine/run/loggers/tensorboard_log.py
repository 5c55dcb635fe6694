"""Figures of a run as event files of TensorBoard.

The package `tensorboardX` writes them without TensorFlow, TensorBoard or PyTorch's own writer, which needs
the package `tensorboard` with its server; `tensorboard --logdir` reads either.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from typing_extensions import override

from partita.engine.run.callbacks.callback import Control
from partita.engine.run.loggers.figures import Line, Logger
from partita.engine.run.loggers.package import imported


@dataclass
class TensorBoardLog(Logger):
    """Writes a scalar for each figure, over the steps; needs `pip install partita[tensorboard]`.

    Args:
        folder: of the run's event files; that of several runs, `--logdir`, is above it.
        every_s: see `Logger`.
    """

    folder: str | Path
    _writer: Any = field(default=None, init=False, repr=False)

    @override
    def open(self, control: Control) -> None:
        package = imported("tensorboardX", "pip install 'partita[tensorboard]'")
        self._writer = package.SummaryWriter(logdir=str(self.folder))

    @override
    def write(self, line: Line) -> None:
        for name, figure in line.figures.items():
            self._writer.add_scalar(f"{line.kind}/{name.removeprefix('val_')}", figure, line.step)

    @override
    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
