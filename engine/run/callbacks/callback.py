"""The base of callbacks, and the handle by which they act on a run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from partita.engine.run.metrics import Record
from partita.engine.run.run import Run


class Control(ABC):
    """The run, as far as callbacks act on it. Only for the thread of `train`, while the run lasts.

    Attributes:
        run: the plan, for callbacks that describe the network; without parameters.
    """

    run: Run

    @abstractmethod
    def stop(self, reason: str) -> None:
        """Ends the run at the next safe point, after a last checkpoint. `train` returns its result."""

    @abstractmethod
    def checkpoint(self) -> None:
        """Asks for a checkpoint: in `on_validation` and `on_epoch` of these very parameters, else soon."""

    @abstractmethod
    def set_learning_rate(self, learning_rate: float) -> None:
        """Sets the learning rate from the next safe point on.

        Raises:
            ValueError: it is not above 0, the optimizer has a schedule, or a batch method has no such rate.
        """

    @abstractmethod
    def scale_learning_rate(self, factor: float) -> None:
        """Multiplies the learning rate, or its whole schedule, from the next safe point on.

        Raises:
            ValueError: the factor is not above 0, or a batch method has no such rate.
        """

    @property
    @abstractmethod
    def learning_rate_scale(self) -> float:
        """The factor of the learning rate that all calls so far have led to."""

    @property
    @abstractmethod
    def seconds(self) -> float:
        """Seconds since the run began."""

    @property
    @abstractmethod
    def steps(self) -> int:
        """Steps done by all replicas, or iterations, as progress counts them."""

    @property
    @abstractmethod
    def epoch(self) -> float:
        """Epochs done, with a fraction; under a batch method its iterations."""

    @abstractmethod
    def save(self, checkpoint: int, path: str | Path) -> Path:
        """Writes the parameters of a checkpoint that is there to a file, as `Run.save` does."""

    @abstractmethod
    def hold(self, checkpoint: int | None) -> None:
        """Keeps one checkpoint until the run ends, whatever is newer, and returns its parameters as those
        of the run; None: the last one, as without this call.
        """


class Callback:
    """Watches a run. Each method does nothing unless it is overridden; any object with some of them will do.

    All are called in the thread of `train`. An error in one of them ends the run as Ctrl-C does.
    """

    def on_start(self, control: Control) -> None:
        """Is called once, before hosts start."""

    def on_record(self, record: Record, control: Control) -> None:
        """Is called with steps of a replica, or with an iteration, as they are reported."""

    def on_validation(self, record: Record, control: Control) -> None:
        """Is called with the figures of a validation: "val_loss" and others."""

    def on_epoch(self, epoch: int, metrics: Mapping[str, float], control: Control) -> None:
        """Is called at the end of each epoch, or iteration, where all replicas have the same parameters.

        Args:
            epoch: epochs done; iterations under a batch method.
            metrics: means over the examples of the epoch, and the figures of the last validation.
            control: of the run.
        """

    def on_checkpoint(self, checkpoint: int, control: Control) -> None:
        """Is called when a checkpoint is complete on the disk."""

    def on_end(self, run: Run | None, control: Control) -> None:
        """Is called when the run is over, with its result; None where it has failed or was interrupted."""

    def state(self) -> Mapping[str, Any]:
        """Returns what is to be kept in checkpoints, of the types of JSON."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on from what `state` has returned."""
