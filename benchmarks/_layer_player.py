"""Our own kernel of a recipe's first layer, alone and in a process of its own.

Arguments: FOLDER THREADS.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks._networks import WORKS
from benchmarks._recipe import Array, Recipe, read_arrays
from benchmarks._worker import serve
from partita.engine.kernels import Arrays, KernelContext, build
from partita.layers import Grid

REPEATS: Final = 5


class LayerPlayer:
    """The layer's forward pass and its gradient; it has no gradient of an input to send."""

    def __init__(self, folder: Path, threads: int) -> None:
        self._folder = folder
        self.begin(threads)

    def begin(self, threads: int) -> None:
        """Makes the kernel, for so many threads."""
        recipe, arrays = Recipe.read(self._folder), read_arrays(self._folder)
        graph = WORKS[recipe.network].network().graph()
        picture, grid = graph.inputs[0], graph.computed[0]
        rows, window = (0, grid.n_rows), (0, picture.n_rows)
        context = KernelContext(grid, rows, (picture,), (window,), (window,), recipe.batch, threads=threads)
        values = [arrays[parameter.name] for parameter in grid.parameters]
        kernel = build(context, _arrays(grid, arrays[picture.name], values))
        self._calls = kernel.forward(), kernel.backward_parameters([np.empty_like(array) for array in values])
        self._operations = 2.0 * context.operations

    def rate(self) -> float:
        """GFLOP/s of both calls together (the median of a few)."""
        found = []
        for _ in range(1 + REPEATS):
            began = time.perf_counter()
            for call in self._calls:
                call()
            found.append(time.perf_counter() - began)
        return 1e-9 * self._operations / statistics.median(found[1:])


def _arrays(grid: Grid, pictures: Array, values: list[Array]) -> Arrays:
    state = np.zeros((*grid.shape, len(pictures)), np.float32)
    errors = np.random.default_rng(2).standard_normal(state.shape, dtype=np.float32)
    window = np.ascontiguousarray(np.moveaxis(pictures, 0, -1))
    return Arrays((window,), state, errors, (None,), tuple(values))


if __name__ == "__main__":
    folder, threads = sys.argv[1:]
    serve(lambda: LayerPlayer(Path(folder), int(threads)))
