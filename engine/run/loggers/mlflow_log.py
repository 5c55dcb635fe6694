"""Figures of a run for MLflow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from typing_extensions import override

from partita.engine.run.callbacks.callback import Control
from partita.engine.run.loggers.figures import Line, Logger
from partita.engine.run.loggers.package import imported


@dataclass
class MLflowLog(Logger):
    """Logs each line as metrics of a run of MLflow; needs `pip install mlflow-skinny`, or `mlflow`.

    Args:
        settings: of `mlflow.start_run`, such as `{"run_name": "digits"}`.
        every_s: see `Logger`.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    _package: Any = field(default=None, init=False, repr=False)

    @override
    def open(self, control: Control) -> None:
        self._package = imported("mlflow", "pip install mlflow-skinny")
        self._package.start_run(**self.settings)

    @override
    def write(self, line: Line) -> None:
        self._package.log_metrics(dict(line.figures), step=line.step)

    @override
    def close(self) -> None:
        if self._package is not None:
            self._package.end_run()
            self._package = None
