"""Writes the parameters with the best values of a metric to files of the user's."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from typing_extensions import override

from partita.engine.run.callbacks.callback import Control
from partita.engine.run.callbacks.watched import Watched
from partita.layers.checks import check_whole


@dataclass(kw_only=True)
class ModelCheckpoint(Watched):
    """Keeps the best parameters as files of safetensors, which `Run.load` and PyTorch read.

    A file has the step and the value in its name: `step-000450.val_loss-0.1234.safetensors`. The checkpoints
    by which a run resumes are others: `train(..., checkpoints=)`.

    Args:
        folder: where the files are written; it is made if need be.
        keep: how many of the best are kept.

    Raises:
        ValueError: a setting is out of range.
    """

    folder: str | Path
    keep: int = 1
    _files: list[tuple[float, str]] = field(default_factory=list, init=False, repr=False)  # best first
    _awaits: tuple[float, int] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(self.keep, "ModelCheckpoint's keep is")

    @override
    def on_start(self, control: Control) -> None:
        Path(self.folder).mkdir(parents=True, exist_ok=True)

    def _look(self, metrics: Mapping[str, float], control: Control) -> None:
        super()._look(metrics, control)
        value = metrics[self.metric]
        worst = self._files[-1][0] if len(self._files) >= self.keep else math.nan
        if not math.isnan(value) and (math.isnan(worst) or self._sign * (worst - value) > self.min_delta):
            self._awaits = value, control.steps
            control.checkpoint()

    @override
    def on_checkpoint(self, checkpoint: int, control: Control) -> None:
        if self._awaits is None:
            return
        (value, step), self._awaits = self._awaits, None
        name = f"step-{step:06d}.{self.metric}-{value:.6g}.safetensors"
        control.save(checkpoint, Path(self.folder) / name)
        self._files = sorted([*self._files, (value, name)], key=lambda one: self._sign * one[0])
        for _, worse in self._files[self.keep :]:
            (Path(self.folder) / worse).unlink(missing_ok=True)
        self._files = self._files[: self.keep]

    @property
    def best_file(self) -> Path | None:
        """The file with the best value; None: none is written yet."""
        return Path(self.folder) / self._files[0][1] if self._files else None

    @override
    def state(self) -> Mapping[str, Any]:
        return {**super().state(), "files": self._files}

    @override
    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self._files = [(float(value), str(name)) for value, name in state["files"]]
