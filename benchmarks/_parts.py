"""A session over processes that plays steps in a thread of its own, so that two can play at the same time."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self

from benchmarks._recipe import Array
from partita.engine import Optimizer, Session
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
        played: every step so far.
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
        seconds, losses = [], []
        for _ in range(steps):
            began = time.perf_counter()
            step = self._session.step(self._batch)
            seconds.append(time.perf_counter() - began)
            losses.append(step.loss)
            self.played.append(step)
            self._batch = None  # from now on the hosts have it
        return seconds, losses

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.submit(self._session.close).result()
        self._thread.shutdown()
