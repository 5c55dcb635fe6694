"""Training steps of a recipe in PyTorch, cut horizontally over two processes: arguments FOLDER CUT
MICRO_BATCHES.

`torch.distributed.pipelining`, its one-forward-one-backward schedule, over gloo; a thread for each process.
The first process answers calls and starts the second, which it tells through gloo how many steps to play.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn import functional

from benchmarks._recipe import Recipe, read_arrays
from benchmarks._torch_network import Translated
from benchmarks._worker import serve

PARTS = 2


class StagePlayer:
    """Plays one of the two stages.

    Args:
        folder: of the recipe.
        cut: how many layers the first stage has.
        micro_batches: of a batch.
        rank: which stage.
        meeting: a file by which the two find one another.
    """

    def __init__(self, folder: Path, cut: int, micro_batches: int, rank: int, meeting: Path) -> None:
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=meeting.as_uri(), rank=rank, world_size=PARTS)
        recipe, arrays = Recipe.read(folder), read_arrays(folder)
        whole = Translated(recipe, arrays, "eager")
        before = sum(1 + (layer.activation != "linear") for layer in recipe.layers[:cut])
        layers = whole.layers[:before] if rank == 0 else whole.layers[before:]
        self._rank, self._inputs = rank, whole.inputs(arrays[recipe.inputs])
        self._target = whole.target(arrays[recipe.target])
        stage = PipelineStage(layers, rank, PARTS, torch.device("cpu"))
        self._schedule = Schedule1F1B(stage, micro_batches, loss_fn=functional.cross_entropy)
        self._optimiser = torch.optim.SGD(layers.parameters(), lr=recipe.rate, fused=True)

    def play(self, steps: int) -> dict[str, object]:
        """Seconds and loss of each step, for both processes."""
        dist.broadcast(torch.tensor([steps]), 0)
        return self.steps(steps)

    def steps(self, steps: int) -> dict[str, object]:
        """The same for this one, with the other at it too."""
        seconds, losses = [], []
        for _ in range(steps):
            dist.barrier()
            began = time.perf_counter()
            loss = torch.tensor([self._step()])
            dist.broadcast(loss, PARTS - 1)
            dist.barrier()
            seconds.append(time.perf_counter() - began)
            losses.append(float(loss))
        return {"seconds": seconds, "losses": losses}

    def _step(self) -> float:
        found: list[torch.Tensor] = []
        self._optimiser.zero_grad()
        if self._rank == 0:
            self._schedule.step(self._inputs)
        else:
            self._schedule.step(target=self._target, losses=found)
        self._optimiser.step()
        return float(torch.stack(found).mean().item()) if found else 0.0

    def listen(self) -> None:
        """Plays what the first process asks for, until it ends."""
        asked = torch.zeros(1, dtype=torch.int64)
        while True:
            try:
                dist.broadcast(asked, 0)
            except RuntimeError:  # it has ended
                return
            self.steps(int(asked))


def main() -> None:
    folder, cut, micro_batches = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    if len(sys.argv) > 4:
        StagePlayer(folder, cut, micro_batches, 1, Path(sys.argv[4])).listen()
        return
    module = [sys.executable, "-m", "benchmarks._torch_pipeline"]
    with tempfile.TemporaryDirectory() as place:
        meeting = Path(place) / "meeting"
        command = [*module, *sys.argv[1:4], str(meeting)]
        other = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr)
        try:
            serve(lambda: StagePlayer(folder, cut, micro_batches, 0, meeting))
        finally:
            other.kill()
            other.wait()


if __name__ == "__main__":
    main()
