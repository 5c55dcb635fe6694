"""The service of a training to its callbacks: validations, decisions, requests, and their state."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from partita.engine.drivers.paced import Pacing
from partita.engine.drivers.trainer import Trainer
from partita.engine.protocol.actions import Decision
from partita.engine.protocol.coordinator_effects import (
    CheckpointRequested,
    CoordinatorEvent,
    Decided,
    SetScale,
    Validated,
)
from partita.engine.run.callbacks.dispatch import Asked, Callbacks
from partita.engine.run.figures import Evaluation, Figures
from partita.engine.run.metrics import Metrics, Record


@dataclass
class Stops:
    """The stops of one training.

    Args:
        trainer: of the driver.
        callbacks: of the call of `train`.
        pacing: when the run stops.

    Attributes:
        validated: the last stop that is over, in examples or iterations; -1: none.
        validations: the records of the validations.
        events: for the coordinator, in order.
    """

    trainer: Trainer
    callbacks: Callbacks
    pacing: Pacing
    validated: int = field(default=-1, init=False)
    validations: list[Record] = field(default_factory=list, init=False)
    events: list[CoordinatorEvent] = field(default_factory=list, init=False)
    _least: int = field(default=0, init=False)  # checkpoints below it are of other parameters than was asked
    _last: Mapping[str, float] = field(default_factory=dict, init=False)  # figures of the last validation
    _states: dict[int, dict[str, Any]] = field(default_factory=dict, init=False)  # by checkpoint
    _has_stopped: bool = field(default=False, init=False)

    # The state, in checkpoints.

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on from the state in a checkpoint, which the trainer has resumed."""
        self.validated = max(int(state.get("validated", -1)), self.trainer.position - 1)
        self.callbacks.restore(state)

    def note_commit(self, checkpoint: int) -> None:
        """Notes the state that belongs to a checkpoint."""
        if self.callbacks.given or self.pacing.minibatches:
            self._states = {checkpoint: {"validated": self.validated, **self.callbacks.state()}}

    def state(self, checkpoint: int) -> dict[str, Any]:
        """Returns what `note_commit` has noted. From any thread."""
        return self._states.get(checkpoint, {})

    # Stops.

    def validate(self, found: Validated, metrics: Metrics) -> Evaluation | None:
        """Tells the callbacks that the run has stopped; what they decide is among the events.

        Returns:
            The means over the validation data, where they were evaluated.
        """
        evaluation = self._evaluation(found)
        if evaluation is not None:
            record = self._record(evaluation, metrics)
            self.validations.append(record)
            self._last = record.metrics
            self.callbacks.call("on_validation", record)
        self._end_epoch(found, metrics)
        asked, self.callbacks.asked = self.callbacks.asked, Asked()
        self.validated = max(self.validated, found.action.at)
        self._least = found.next_checkpoint if asked.checkpoint else self._least
        self._has_stopped |= bool(asked.stop)
        self._change_rate(asked)
        decision = Decision(asked.checkpoint, asked.stop, metrics.seconds)
        self.events.append(Decided(decision))
        return evaluation

    def _evaluation(self, found: Validated) -> Evaluation | None:
        data = self.trainer.job.validation
        if not found.sums or data is None:
            return None
        figures = Figures(data.plan.graph, data.metrics)
        for unit, parts in enumerate(found.sums):
            figures.add_parts(parts, data.real(unit))
        return figures.evaluation()

    def _record(self, evaluation: Evaluation, metrics: Metrics) -> Record:
        found = {"loss": evaluation.loss, "accuracy": evaluation.accuracy, **evaluation.metrics}
        named = {f"val_{name}": figure for name, figure in found.items() if not math.isnan(figure)}
        return Record(metrics.seconds, None, metrics.done_now, evaluation.examples, named)

    def _end_epoch(self, found: Validated, metrics: Metrics) -> None:
        """Calls `on_epoch` at the end of each epoch, or iteration."""
        size = 1 if self.trainer.driver.evaluates else self.trainer.outline.examples
        if found.action.at % size == 0 and found.action.at > self.validated:
            means = {name: mean for name, mean in metrics.of_epoch().items() if not math.isnan(mean)}
            self.callbacks.call("on_epoch", found.action.at // size, {**means, **self._last})

    def committed(self, checkpoint: int) -> None:
        """Tells the callbacks of a checkpoint, unless they wait for one of later parameters."""
        if checkpoint >= self._least:
            self.callbacks.call("on_checkpoint", checkpoint)

    # Between stops.

    def look(self) -> tuple[list[CoordinatorEvent], str]:
        """Returns events for the coordinator, and why the run is to be ended now; "": it is not."""
        self.callbacks.look_at_clock()
        asked, self.callbacks.asked = self.callbacks.asked, Asked()
        self._change_rate(asked)
        if asked.checkpoint:
            self.events.append(CheckpointRequested())
        events, self.events = self.events, []
        return events, "" if self._has_stopped else asked.stop

    def _change_rate(self, asked: Asked) -> None:
        if asked.scale is not None:
            self.events.append(SetScale(asked.scale))

    def why(self, done: int) -> str:
        """Returns why a run with so many steps or iterations ended before all was done; "": it did not."""
        most, total = self.pacing.most, self.trainer.total
        if not self.callbacks.stopped and most is not None and done >= most and (not total or done < total):
            return f"max_steps={most} is reached"
        return self.callbacks.stopped
