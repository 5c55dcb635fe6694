"""Ends a run when a metric gets no better any more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from typing_extensions import override

from partita.engine.run.callbacks.callback import Control
from partita.engine.run.callbacks.watched import Watched
from partita.layers.checks import check_flag, check_whole
from partita.layers.text import counted


@dataclass(kw_only=True)
class EarlyStopping(Watched):
    """Ends the run when a metric has not become better for a while.

    Args:
        patience: validations, or epochs, without a better value after which the run ends.
        restore_best: return the parameters with the best value, not the last ones. Each better value then
            writes a checkpoint, which is kept to the end.

    Raises:
        ValueError: a setting is out of range.
    """

    patience: int = 3
    restore_best: bool = False
    _held: int | None = field(default=None, init=False, repr=False)
    _awaits: bool = field(default=False, init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(self.patience, "EarlyStopping's patience is")
        check_flag(self.restore_best, "EarlyStopping's restore_best is")

    @override
    def on_start(self, control: Control) -> None:
        if self._held is not None:
            control.hold(self._held)

    @override
    def improved(self, control: Control) -> None:
        if self.restore_best:
            self._awaits = True
            control.checkpoint()

    @override
    def on_checkpoint(self, checkpoint: int, control: Control) -> None:
        if self._awaits:
            self._awaits, self._held = False, checkpoint
            control.hold(checkpoint)

    @override
    def stayed(self, control: Control) -> None:
        if self.waited >= self.patience:
            looks = counted(self.waited, "look")
            control.stop(f"{self.metric} has not become better than {self.best:.6g} for {looks}")

    @override
    def state(self) -> Mapping[str, Any]:
        return {**super().state(), "held": self._held}

    @override
    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self._held = state["held"]
