"""Training steps of a recipe in PyTorch, cut horizontally over two processes: arguments FOLDER CUT
MICRO_BATCHES.

`torch.distributed.pipelining`, its one-forward-one-backward schedule, over gloo.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn import functional

from benchmarks._recipe import Recipe, read_arrays
from benchmarks._torch_group import PARTS, GroupPlayer, serve_group
from benchmarks._torch_models import GPT2, FirstStage, LastStage
from benchmarks._torch_network import Translated


class StagePlayer(GroupPlayer):
    """Plays one of the two stages.

    Args:
        folder: of the recipe.
        cut: how many layers, or blocks, the first stage has.
        micro_batches: of a batch.
        rank: which stage.
        meeting: a file by which the two find one another.
    """

    def __init__(self, folder: Path, cut: int, micro_batches: int, rank: int, meeting: Path) -> None:
        super().__init__(rank, meeting)
        recipe, arrays = Recipe.read(folder), read_arrays(folder)
        whole = Translated(recipe, arrays, "eager")
        layers = _stage(recipe, whole.layers, cut, rank)
        self._tied = [part.weight for part in whole.layers.modules() if isinstance(part, nn.Embedding)][:1]
        self._inputs = whole.inputs(arrays[recipe.inputs])
        self._target = whole.target(arrays[recipe.target])
        stage = PipelineStage(layers, rank, PARTS, torch.device("cpu"))
        self._schedule = Schedule1F1B(stage, micro_batches, loss_fn=_loss)
        self._optimiser = torch.optim.SGD(layers.parameters(), lr=recipe.rate, fused=True)

    def step(self) -> float:
        found: list[torch.Tensor] = []
        self._optimiser.zero_grad()
        if self.rank == 0:
            self._schedule.step(self._inputs)
        else:
            self._schedule.step(target=self._target, losses=found)
        for weight in self._tied:  # of both stages: each has the gradient of its own use
            dist.all_reduce(weight.grad)
        self._optimiser.step()
        return float(torch.stack(found).mean().item()) if found else 0.0


def _loss(scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(scores.flatten(0, -2), target.flatten())


def _stage(recipe: Recipe, layers: nn.Module, cut: int, rank: int) -> nn.Module:
    """The modules of a rank."""
    if isinstance(layers, GPT2):
        return FirstStage(layers, cut) if rank == 0 else LastStage(layers, cut)
    assert isinstance(layers, nn.Sequential)
    if recipe.network == "blocks":  # one module more: the positions
        before = cut + 1
    else:
        before = sum(1 + (layer.activation != "linear") for layer in recipe.layers[:cut])
    return layers[:before] if rank == 0 else layers[before:]


def main() -> None:
    folder, cut, micro_batches = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    serve_group(
        "_torch_pipeline",
        sys.argv[1:4],
        lambda rank, meeting: StagePlayer(folder, cut, micro_batches, rank, meeting),
    )


if __name__ == "__main__":
    main()
