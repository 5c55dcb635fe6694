"""Minibatches that are made ahead of their use, on threads or in processes, bounded in bytes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from partita.engine.data.draws import Batch
from partita.engine.data.prepared import Maker, Prepared
from partita.engine.data.times import FeedTimes
from partita.engine.data.workers import WorkerProcesses
from partita.engine.files.sources import OpensArrays

Array = npt.NDArray[Any]
Wanted: TypeAlias = tuple[Array, int]
"""The numbers of a minibatch's examples, and the epoch."""
_Key: TypeAlias = tuple[int, bytes]

MOST_AHEAD: Final = 16
"""Minibatches that are made ahead at most."""
LEAST_AHEAD: Final = 2
"""Minibatches that are made ahead at least: one is used while the next one is made."""
_TAKEN: Final = 3
"""Minibatches that were taken and are kept, because not all of their arrays may have been."""


class ReadAhead:
    """Makes minibatches that were announced, and hands each over when it is asked for. From any thread."""

    def __init__(self, prepared: Prepared, files: OpensArrays, *, own_process: bool = True) -> None:
        """Opens the data set; `own_process` says whether files can be read in further processes."""
        self._prepared: Final = prepared
        self._bound = prepared.ahead_bytes
        in_processes = prepared.processes and own_process and prepared.dataset.seekable
        self._maker: Maker | WorkerProcesses = (
            WorkerProcesses(prepared, prepared.workers) if in_processes else prepared.maker(files)
        )
        self._threads = ThreadPoolExecutor(prepared.workers, thread_name_prefix="read ahead")
        self._lock = threading.Lock()
        self._made: dict[_Key, Future[Batch]] = {}
        self._taken: list[_Key] = []  # the last ones, the oldest first
        self._n_bytes = 0  # of a minibatch
        self.waited_s = 0.0

    @property
    def depth(self) -> int:
        """The number of minibatches that are made ahead; two until the size of one is known."""
        most = self._bound // self._n_bytes if self._n_bytes else LEAST_AHEAD
        return int(max(LEAST_AHEAD, min(most, MOST_AHEAD)))

    @property
    def times(self) -> FeedTimes | None:
        """Times of making and waiting so far; None for a part that reads nothing."""
        if not self._prepared.grids:
            return None
        return FeedTimes(self.waited_s, self._maker.made_s, self._maker.made, self._prepared.workers)

    def announce(self, following: Iterable[Wanted]) -> None:
        """Makes these minibatches next, in this order, and drops others that nobody has taken."""
        wanted = {_key(*one): one for one in following}
        with self._lock:
            for key in [key for key in self._made if key not in wanted and key not in self._taken]:
                self._made.pop(key).cancel()
            for key, one in wanted.items():
                if key not in self._made:
                    self._made[key] = self._threads.submit(self._maker.make, *one)

    def take(self, chosen: Array, epoch: int, *, awaited: bool = True) -> Batch:
        """Returns a minibatch; waits for it. Raises as `Maker.make`.

        Args:
            chosen: numbers of its examples.
            epoch: how often they were seen before.
            awaited: whether computing waits meanwhile, so that `waited_s` counts.
        """
        key = _key(chosen, epoch)
        with self._lock:
            found = self._made.get(key)
            if found is None:
                found = self._made[key] = self._threads.submit(self._maker.make, chosen, epoch)
            if key not in self._taken:
                self._taken.append(key)
                if len(self._taken) > _TAKEN:
                    self._made.pop(self._taken.pop(0), None)
        if not found.done():
            began = time.perf_counter()
            found.exception()
            self.waited_s += time.perf_counter() - began if awaited else 0.0
        batch = found.result()
        self._n_bytes = self._n_bytes or sum(array.nbytes for array in batch.values())
        return batch

    def close(self) -> None:
        """Ends the workers, after what they are making."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._maker.close()


def _key(chosen: Array, epoch: int) -> _Key:
    return epoch, np.ascontiguousarray(chosen, np.int64).tobytes()
