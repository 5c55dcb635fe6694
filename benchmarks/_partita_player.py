"""Training steps of a recipe on one part, in a process of its own: arguments FOLDER PRECISION THREADS."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from benchmarks._memory import Meter
from benchmarks._networks import SEED, WORKS
from benchmarks._recipe import Recipe, read_array
from benchmarks._worker import serve
from partita.engine import SGD, Session
from partita.partitioner import Cluster, partition


class PartitaPlayer:
    """Plays steps of a session whose host is this thread."""

    def __init__(self, folder: Path, precision: str, threads: int) -> None:
        self._meter = Meter()
        self._recipe, self._precision = Recipe.read(folder), precision
        names = self._recipe.inputs, self._recipe.target
        self._batch = {name: read_array(folder, name) for name in names}
        self._session = self._begun(threads)

    def begin(self, threads: int) -> None:
        """Starts again with the first parameters, on so many threads."""
        self._session.close()
        self._session = self._begun(threads)

    def _begun(self, threads: int) -> Session:
        recipe, cluster = self._recipe, Cluster.local(machines=1, threads=threads)
        network, precision = WORKS[recipe.network].network(), self._precision
        plan = partition(network, cluster, batch=recipe.batch, precision=precision)
        optimizer = SGD(recipe.rate)
        self._fed = False
        return Session(plan, SEED, train=True, optimizer=optimizer, hosts="inline")

    def play(self, steps: int) -> dict[str, object]:
        """Seconds and loss of each step, and for how long processors were busy with all of them."""
        seconds, losses, used = [], [], time.process_time()
        for _ in range(steps):
            began = time.perf_counter()
            losses.append(self._session.step(None if self._fed else self._batch).loss)
            seconds.append(time.perf_counter() - began)
            self._fed = True
        return {"seconds": seconds, "losses": losses, "busy_s": time.process_time() - used}

    def mark(self) -> None:
        """The first steps are over."""
        self._meter.mark()

    def memory(self) -> dict[str, int]:
        """The process's peak."""
        return self._meter.read()


if __name__ == "__main__":
    folder, precision, threads = sys.argv[1:]
    serve(lambda: PartitaPlayer(Path(folder), precision, int(threads)))
