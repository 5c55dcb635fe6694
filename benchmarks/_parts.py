"""A session over processes that plays steps in a thread of its own, so that two can play at the same time."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks._recipe import Array
from partita.engine import Optimizer, Session
from partita.engine.protocol.names import part_name
from partita.engine.run import Step
from partita.partitioner import Plan


class Parts:
    """A session in a thread of its own. Use it as a context manager.

    Args:
        plan: what to play.
        initial: the parameters.
        batch: what every step sees.
        rule: of the updates.
        overlap: minibatches in a step; the batch holds all of them.

    Attributes:
        played: every step so far, or since `forget`.
        used_s: processor seconds of all hosts for these steps.
    """

    def __init__(
        self,
        plan: Plan,
        initial: Mapping[str, Array],
        batch: Mapping[str, Array],
        optimizer: Optimizer,
        *,
        overlap: int = 1,
    ) -> None:
        self.plan, self.overlap = plan, overlap
        self.played: list[Step] = []
        self._batch: Mapping[str, Array] | None = batch
        self._thread = ThreadPoolExecutor(1)
        self._session = self._thread.submit(self._open, initial, optimizer).result()
        self.used_s = 0.0

    def _open(self, initial: Mapping[str, Array], optimizer: Optimizer) -> Session:
        return Session(
            self.plan,
            initial,
            train=True,
            optimizer=optimizer,
            overlap=self.overlap,
            hosts="processes",
            timeout_s=120.0,
        )

    def begin(self, steps: int) -> Future[tuple[list[float], list[float]]]:
        """Starts steps; the future has seconds and losses."""
        return self._thread.submit(self._play, steps)

    def _play(self, steps: int) -> tuple[list[float], list[float]]:
        seconds, losses, used_s = [], [], self._processor_s
        for _ in range(steps):
            began = time.perf_counter()
            step = self._session.step(self._batch)
            seconds.append(time.perf_counter() - began)
            losses.append(step.loss)
            self.played.append(step)
            self._batch = None  # from now on the hosts have it
        self.used_s += self._processor_s - used_s
        return seconds, losses

    def forget(self) -> None:
        """Forgets the steps that were played."""
        self.played.clear()
        self.used_s = 0.0

    @property
    def _processor_s(self) -> float:
        names = [part_name(0, machine) for machine in range(len(self.plan.cluster))]
        return sum(map(_seconds_of, map(self._session.launcher.pid, names)))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.submit(self._session.close).result()
        self._thread.shutdown()


def _seconds_of(pid: int) -> float:
    """Processor seconds of a process since it began, with those of its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
