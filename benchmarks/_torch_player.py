"""Training steps of a recipe in PyTorch, in a process of its own: arguments FOLDER FORM THREADS.

Forms: "eager"; "channels-last" (of convolutions); "compile" by torch.compile; "autocast" to bfloat16; and the
forms of unshared filters, "view", "rows" and "einsum".
"""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path

import torch

from benchmarks._memory import Meter
from benchmarks._recipe import Recipe, read_arrays
from benchmarks._torch_network import Translated
from benchmarks._worker import serve


class TorchPlayer:
    """Runs steps: forward, backward, and SGD in one pass over memory."""

    def __init__(self, folder: Path, form: str, threads: int) -> None:
        self._meter = Meter()
        self._folder, self._form = folder, form
        self.begin(threads)

    def begin(self, threads: int) -> None:
        """Starts, or starts again, with the first parameters, on so many threads."""
        torch.set_num_threads(threads)
        torch.compiler.reset()
        form, recipe, arrays = self._form, Recipe.read(self._folder), read_arrays(self._folder)
        translated = Translated(recipe, arrays, form)
        self._inputs = translated.inputs(arrays[recipe.inputs])
        self._target = translated.target(arrays[recipe.target])
        if form == "channels-last":
            translated.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            self._inputs = self._inputs.contiguous(memory_format=torch.channels_last)
        self._network = torch.compile(translated) if form == "compile" else translated
        self._optimiser = torch.optim.SGD(translated.parameters(), lr=recipe.rate, fused=True)
        self._autocast = form == "autocast"

    def play(self, steps: int) -> dict[str, object]:
        """Seconds and loss of each step, and for how long processors were busy with all of them."""
        seconds, losses, used = [], [], time.process_time()
        for _ in range(steps):
            began = time.perf_counter()
            losses.append(self._step())
            seconds.append(time.perf_counter() - began)
        return {"seconds": seconds, "losses": losses, "busy_s": time.process_time() - used}

    def _step(self) -> float:
        self._optimiser.zero_grad()
        with torch.autocast("cpu", torch.bfloat16) if self._autocast else contextlib.nullcontext():
            loss = self._network(self._inputs, self._target)
        loss.backward()
        self._optimiser.step()
        return float(loss.item())

    def mark(self) -> None:
        """The first steps are over."""
        self._meter.mark()

    def memory(self) -> dict[str, int]:
        """The process's peak."""
        return self._meter.read()


if __name__ == "__main__":
    folder, form, threads = sys.argv[1:]
    serve(lambda: TorchPlayer(Path(folder), form, int(threads)))
