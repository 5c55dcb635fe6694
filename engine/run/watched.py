"""A run that is watched: what its coordinator sees becomes the records of a file.

Nothing here is on the way of a step: the coordinator's thread only gathers, and another one writes.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from partita.engine.drivers.trainer import Trainer
from partita.engine.protocol.coordinator_effects import EndRun, Progress
from partita.engine.protocol.host_lifecycle import HostLifecycle
from partita.engine.run.metrics import Record as Steps
from partita.engine.watch.file import StreamWriter, next_path
from partita.engine.watch.observer import EVERY_S, RunObserver
from partita.engine.watch.planned import Extent, began, picture
from partita.engine.watch.progress import ProgressGatherer
from partita.engine.watch.records import Event, Record, RunEnded, Validation


class WatchedRun:
    """The stream of one run.

    Attributes:
        path: of its file.
    """

    def __init__(self, trainer: Trainer, path: Path) -> None:
        """Creates the file, and begins the stream; times count from here.

        Args:
            trainer: of the run.
            path: of the file, which must not exist.

        Raises:
            OSError: the file cannot be created.
        """
        self._began_at, self.path = time.monotonic(), path
        per_epoch = _steps_per_epoch(trainer)
        self._extent: Final = Extent(
            run=trainer.run_id,
            unit=trainer.unit,
            examples=trainer.job.examples,
            steps=trainer.limit or None,
            steps_before=sum(trainer.done),
            steps_per_epoch=per_epoch,
            started_unix_s=time.time(),
        )
        self._trainer: Final = trainer
        self._writer: Final = StreamWriter(path)
        self._writer.write(self._first)
        self._gathered: Final = ProgressGatherer(
            steps=self._extent.steps, done=trainer.done, steps_per_epoch=per_epoch
        )
        self._observer: Final = RunObserver(
            len(trainer.plan.cluster), self._writer.write, began_at=self._began_at
        )
        self._progress_at = float("-inf")
        self._iterations = 0
        self._done: EndRun | None = None

    def _first(self) -> Iterator[Record]:
        """The plan: made on the thread that writes, because simulating a large one takes a while."""
        trainer = self._trainer
        yield began(trainer.plan, trainer.driver, self._extent)
        drawn = picture(trainer.plan)
        if drawn is not None:
            yield drawn

    @property
    def _at_s(self) -> float:
        return time.monotonic() - self._began_at

    # What the supervisor sees.

    def saw_event(self, event: Any, now: float) -> None:
        """Notes an event before the coordinator handles it, at `now` (seconds, monotonic)."""
        self._observer.saw_event(event, now)

    def saw_effect(self, effect: Any, now: float) -> None:
        """Notes an effect that the coordinator asks for."""
        if isinstance(effect, Progress):
            self._gathered.count(effect)
        else:
            self._observer.saw_effect(effect, now)

    def look(self, coordinator: HostLifecycle, now: float) -> None:
        """Writes what has come, about once a second."""
        self._observer.look(coordinator, now)
        if now - self._progress_at >= EVERY_S:
            self._progress_at = now
            self._write_progress()

    def add(self, steps: Steps) -> None:
        """Adds an entry of the run's metrics."""
        if steps.replica is not None:
            self._gathered.add(steps.replica, steps.step, steps.examples, steps.metrics, self._at_s)
            return
        self._iterations = steps.step
        self._writer.write(self._gathered.iteration(steps.step, steps.metrics, steps.note, self._at_s))

    def validated(self, found: Steps) -> None:
        """Writes the figures of a validation."""
        metrics = {name.removeprefix("val_"): value for name, value in found.metrics.items()}
        per_epoch = self._extent.steps_per_epoch
        self._writer.write(
            Validation(
                at_s=self._at_s,
                step=found.step,
                epoch=found.step / per_epoch if per_epoch else None,
                examples=found.examples,
                metrics=metrics,
            )
        )

    def _write_progress(self) -> None:
        record = self._gathered.record(self._at_s)
        if record is not None:
            self._writer.write(record)

    # The end.

    def done(self, coordinator: HostLifecycle, done: EndRun) -> None:
        """Notes how far the run has come that its coordinator has ended."""
        self._observer.flush(coordinator, time.monotonic())
        self._done = done

    def _ended(self, error: BaseException | None, stopped: str) -> RunEnded:
        done, steps = self._done, self._iterations or self._gathered.steps
        whole = f"complete after {self._trainer.far(steps)}"
        reason = "" if done is None or done.outcome is None else f": {done.outcome.reason}"
        is_stopped = isinstance(error, KeyboardInterrupt)  # `Interrupted` is one
        text = stopped or whole + reason if error is None else str(error) or type(error).__name__
        return RunEnded(
            at_s=self._at_s,
            outcome="complete" if error is None else "interrupted" if is_stopped else "failed",
            text=text,
            steps=steps,
            examples=self._gathered.examples,
            seconds=self._at_s,
            lost_pushes=None if done is None else done.lost,
            checkpoint=None if done is None else done.checkpoint,
        )

    def close(self, error: BaseException | None, stopped: str) -> str | None:
        """Writes the end of the run and ends the thread.

        Args:
            error: the one by which the run ended, which may be that the user has interrupted it; None: none.
            stopped: why it ended before all work was done; "": it did not.

        Returns:
            A sentence about records that could not be written; None if all are.
        """
        self._write_progress()
        last = self._ended(error, stopped)
        self._writer.write(Event(at_s=last.at_s, kind="ended", text=last.text, step=last.steps))
        self._writer.write(last)
        self._writer.close()
        failure = self._writer.error
        return None if failure is None else f"the records in {self.path} are not complete: {failure}"


def _steps_per_epoch(trainer: Trainer) -> int | None:
    """Steps of all replicas in an epoch; None for a batch method."""
    if trainer.unit != "step" or not trainer.total or not trainer.outline.epochs:
        return None
    return max(trainer.total // trainer.outline.epochs, 1)


def watched_path(watch: bool | str | Path, folder: Path | None) -> Path:
    """Returns where the stream of a run goes.

    Args:
        watch: True, or the path of a file.
        folder: of the run, if it is kept; a new file beside other temporary ones if not.
    """
    if watch is not True:
        return Path(str(watch))
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        return next_path(folder)
    return Path(tempfile.mkdtemp(prefix="partita-records-")) / "records-1.jsonl"
