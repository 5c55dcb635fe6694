"""Lowers the learning rate when a metric gets no better."""

from __future__ import annotations

from dataclasses import dataclass

from typing_extensions import override

from partita.engine.run.callbacks.callback import Control
from partita.engine.run.callbacks.watched import Watched
from partita.layers.checks import check_number, check_whole


@dataclass(kw_only=True)
class ReduceOnPlateau(Watched):
    """Multiplies the learning rate by a factor when a metric has not become better for a while.

    Args:
        factor: above 0 and below 1.
        patience: validations, or epochs, without a better value after which the rate is lowered; it waits as
            long again for the next time.
        least: the rate is not lowered below this fraction of the optimizer's own.

    Raises:
        ValueError: a setting is out of range.
    """

    factor: float = 0.5
    patience: int = 3
    least: float = 1e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self.factor, "ReduceOnPlateau's factor is", below=1.0)
        check_number(self.least, "ReduceOnPlateau's least is", zero=True)
        check_whole(self.patience, "ReduceOnPlateau's patience is")

    @override
    def stayed(self, control: Control) -> None:
        if self.waited >= self.patience:
            self.waited = 0
            factor = max(self.factor, self.least / control.learning_rate_scale)
            if factor < 1.0:
                control.scale_learning_rate(factor)
