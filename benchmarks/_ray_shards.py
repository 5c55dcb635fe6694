"""One part and two shards as Ray's actors: gradients and parameters through its object store.

As in Ray's own example of a parameter server: an actor applies the gradient that it is given, and returns its
parameters. Arrays are read where they lie in the store, and each side writes its own there once. Needs `ray`.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import ray

from benchmarks._torch_adagrad import TorchShard
from benchmarks._worker import serve

SHARDS: Final = 2


class Shard:
    """An actor with half of the parameters."""

    def __init__(self, size: int) -> None:
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        self._shard = TorchShard(size, size)

    def update(self, gradient: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Applies a gradient, and returns the parameters."""
        return self._shard.update(0, gradient)


class Player:
    """The part: gives each shard its half of a gradient, and gets its half of the parameters.

    Args:
        size: parameters.
    """

    def __init__(self, size: int) -> None:
        root = str(Path(__file__).parent.parent)
        paths = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
        ray.init(
            num_cpus=SHARDS,
            object_store_memory=max(1 << 27, 16 * 4 * size),
            include_dashboard=False,
            log_to_driver=False,
            logging_level="error",
            runtime_env={"env_vars": {"PYTHONPATH": paths}},
        )
        self._gradients = np.array_split(np.full(size, 0.5, np.float32), SHARDS)
        self._values = np.zeros(size, np.float32)
        self._halves = np.array_split(self._values, SHARDS)
        made: Any = ray.remote(num_cpus=1)(Shard)
        self._shards = [made.remote(half.size) for half in self._halves]
        self.play(2)

    def play(self, steps: int) -> list[float]:
        """Seconds of each step."""
        return [self._once() for _ in range(steps)]

    def first(self) -> float:
        """The first parameter."""
        return float(self._values[0])

    def _once(self) -> float:
        began = time.perf_counter()
        answers = [
            shard.update.remote(ray.put(gradient))
            for shard, gradient in zip(self._shards, self._gradients, strict=True)
        ]
        for answer, half in zip(answers, self._halves, strict=True):
            np.copyto(half, ray.get(answer))
        return time.perf_counter() - began


def main() -> None:
    """Serves the part; its size is the argument."""
    size = int(sys.argv[1])
    try:
        serve(lambda: Player(size))
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()
