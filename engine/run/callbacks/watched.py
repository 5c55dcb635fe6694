"""A metric that a callback watches: its best value so far, and how long ago that was."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal

from typing_extensions import override

from partita.engine.run.callbacks.callback import Callback, Control
from partita.engine.run.metrics import Record
from partita.layers.checks import check_choice, check_number

Direction = Literal["auto", "min", "max"]

_LARGER_IS_BETTER = ("accuracy", "top", "auc", "f1", "precision", "recall")


@dataclass(kw_only=True)
class Watched(Callback):
    """Compares a metric at each validation or epoch that has it.

    Args:
        metric: such as "val_loss", "val_accuracy", or one of the training, "loss".
        mode: "min" where less is better, "max" where more is; "auto": by the metric's name.
        min_delta: a value counts as better where it is better by more than this.
    """

    metric: str = "val_loss"
    _: KW_ONLY
    mode: Direction = "auto"
    min_delta: float = 0.0
    best: float = field(default=math.nan, init=False, repr=False)
    waited: int = field(default=0, init=False, repr=False)

    def __post_init__(self) -> None:
        check_choice(self.mode, f"{type(self).__name__}'s mode is", ("auto", "min", "max"))
        check_number(self.min_delta, f"{type(self).__name__}'s min_delta is", zero=True)
        name = self.metric.lower()
        more = self.mode == "max" or (self.mode == "auto" and any(one in name for one in _LARGER_IS_BETTER))
        self._sign = -1.0 if more else 1.0

    @override
    def on_validation(self, record: Record, control: Control) -> None:
        if self.metric.startswith("val_"):
            self._look(record.metrics, control)

    @override
    def on_epoch(self, epoch: int, metrics: Mapping[str, float], control: Control) -> None:
        if not self.metric.startswith("val_"):
            self._look(metrics, control)

    def _look(self, metrics: Mapping[str, float], control: Control) -> None:
        if self.metric not in metrics:
            raise ValueError(
                f"{type(self).__name__} watches '{self.metric}', and there are {', '.join(sorted(metrics))}; "
                "name one of them"
            )
        value = metrics[self.metric]
        if math.isnan(self.best) or self._sign * (self.best - value) > self.min_delta:
            self.best, self.waited = value, 0
            self.improved(control)
        else:
            self.waited += 1
            self.stayed(control)

    def improved(self, control: Control) -> None:
        """Is called where the metric is better than ever before."""

    def stayed(self, control: Control) -> None:
        """Is called where it is not."""

    @override
    def state(self) -> Mapping[str, Any]:
        return {"best": None if math.isnan(self.best) else self.best, "waited": self.waited}

    @override
    def restore(self, state: Mapping[str, Any]) -> None:
        self.best = math.nan if state["best"] is None else float(state["best"])
        self.waited = int(state["waited"])
