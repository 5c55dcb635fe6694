"""Calls the callbacks of a run in order, and ends the run where one of them fails.

What they ask for by their `Control` is kept here until the run loop takes it: they are called in the middle
of its work.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from typing_extensions import override

from partita.engine.drivers.trainer import Trainer
from partita.engine.run.callbacks.callback import Control
from partita.engine.run.metrics import OnRecord, Record
from partita.engine.run.run import Run
from partita.layers.checks import check_number

METHODS: Final = ("on_start", "on_record", "on_validation", "on_epoch", "on_checkpoint", "on_end")


class OnlyRecords:
    """The callback that calls a function with each record."""

    def __init__(self, function: OnRecord) -> None:
        self._function = function

    def on_record(self, record: Record, control: Control) -> None:
        """Passes on a record alone."""
        self._function(record)


class Followed(Protocol):
    """A training, as far as callbacks may know it."""

    @property
    def trainer(self) -> Trainer:
        """The driver at work."""

    @property
    def steps(self) -> int:
        """Steps done by all replicas, or iterations."""

    @property
    def epoch(self) -> float:
        """Epochs done, with a fraction; iterations under a batch method."""

    def saved(self, checkpoint: int | None) -> Run:
        """Returns the plan with the parameters of a checkpoint."""


@dataclass
class Asked:
    """Requests of callbacks since the run loop looked last."""

    stop: str = ""
    checkpoint: bool = False
    scale: float | None = None


@dataclass
class Callbacks(Control):
    """The callbacks of a call of `train`, and their handle.

    Args:
        given: the user's objects.
        max_s: seconds after which the run ends; None: no limit.

    Attributes:
        asked: what they have asked for.
        error: the error of one that has failed.
        stopped: why the run ends early; "": it does not.
        held: the checkpoint whose parameters the run returns.
        scale: factor of the learning rate.
    """

    given: Sequence[Any] = ()
    max_s: float | None = None
    asked: Asked = field(default_factory=Asked, init=False)
    error: Exception | None = field(default=None, init=False)
    stopped: str = field(default="", init=False)
    held: int | None = field(default=None, init=False)
    scale: float = field(default=1.0, init=False)
    _training: Followed | None = field(default=None, init=False)
    _began: float = field(default_factory=time.monotonic, init=False)
    _has_started: bool = field(default=False, init=False)

    def begin(self, training: Followed) -> None:
        """Follows a training; the first one starts the callbacks."""
        self._training, self.held = training, None
        self.run = Run(training.trainer.job.plan, {})
        if not self._has_started:
            self._has_started = True
            self.call("on_start")

    def has(self, method: str) -> bool:
        """Returns whether some callback does something at this moment."""
        from partita.engine.run.callbacks.callback import Callback

        own = getattr(Callback, method)
        return any(getattr(type(one), method, own) is not own for one in self.given)

    def call(self, method: str, *arguments: Any) -> None:
        """Calls a method of every callback that has it. After an error of one, no other is called."""
        for one in self.given:
            function = getattr(one, method, None)
            if function is None or (self.error is not None and method != "on_end"):
                continue
            try:
                function(*arguments, self)
            except Exception as error:  # noqa: BLE001 - raised again when the run has ended
                if self.error is None:
                    error.add_note(f"in {method} of the callback {one!r}")
                    self.error = error
                    self.stop(f"the callback {type(one).__name__} has failed: {type(error).__name__}")

    def look_at_clock(self) -> None:
        """Ends the run when its time is over."""
        if self.max_s is not None and self.seconds >= self.max_s and not self.stopped:
            self.stop(f"max_s={self.max_s:g} is reached")

    # The state, in checkpoints.

    def _named(self) -> Iterator[tuple[str, Any]]:
        """Each callback that has a state, by the name of its class, and a number where there are several."""
        counts: Counter[str] = Counter()
        for one in self.given:
            name = type(one).__qualname__
            counts[name] += 1
            if hasattr(one, "state") and hasattr(one, "restore"):
                yield name if counts[name] == 1 else f"{name} {counts[name]}", one

    def state(self) -> dict[str, Any]:
        """Returns the state of all callbacks, and the learning rate's factor."""
        states = {name: found for name, one in self._named() if (found := dict(one.state()))}
        return {"scale": self.scale, "callbacks": states}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on from an earlier run's state, as far as the same callbacks are there."""
        self.scale = float(state.get("scale", 1.0))
        known = state.get("callbacks", {})
        for name, one in self._named():
            if name in known:
                one.restore(known[name])

    # The handle.

    @property
    def _present(self) -> Followed:
        assert self._training is not None, "the run has not begun"
        return self._training

    @override
    def stop(self, reason: str) -> None:
        self.stopped = self.asked.stop = self.stopped or reason

    @override
    def checkpoint(self) -> None:
        self.asked.checkpoint = True

    @override
    def set_learning_rate(self, learning_rate: float) -> None:
        check_number(learning_rate, "the learning rate is")
        own = getattr(self._present.trainer.driver, "optimizer", None)
        rate = getattr(own, "learning_rate", None)
        if not isinstance(rate, int | float):
            raise ValueError(
                f"the learning rate of {own or self._present.trainer.name} is no number that can be set; "
                "scale_learning_rate(factor) scales a schedule, and a batch method has none"
            )
        self._scale_to(learning_rate / rate)

    @override
    def scale_learning_rate(self, factor: float) -> None:
        self._scale_to(self.scale * check_number(factor, "the factor of the learning rate is"))

    def _scale_to(self, scale: float) -> None:
        if self._present.trainer.driver.evaluates:
            raise ValueError(f"{self._present.trainer.name} is a batch method and has no learning rate")
        self.scale = self.asked.scale = scale

    @property
    @override
    def learning_rate_scale(self) -> float:
        return self.scale

    @property
    @override
    def seconds(self) -> float:
        return time.monotonic() - self._began

    @property
    @override
    def steps(self) -> int:
        return self._present.steps

    @property
    @override
    def epoch(self) -> float:
        return self._present.epoch

    @override
    def save(self, checkpoint: int, path: str | Path) -> Path:
        return self._present.saved(checkpoint).save(path)

    @override
    def hold(self, checkpoint: int | None) -> None:
        self.held = checkpoint


@contextlib.contextmanager
def ending(callbacks: Callbacks) -> Iterator[list[Run]]:
    """Calls `on_end` when the run is over, with the run that is put into the list; raises their errors."""
    found: list[Run] = []
    try:
        yield found
    finally:
        callbacks.call("on_end", found[0] if found else None)
    if callbacks.error is not None:
        raise callbacks.error
