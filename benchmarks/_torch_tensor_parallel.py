"""Training steps of a recipe in PyTorch, its layers cut over two processes: argument FOLDER.

`DTensor` over gloo: layers are cut by outputs and by inputs in turn, so that two of them need one exchange;
the scores by outputs, and the loss of cut scores (`loss_parallel`). In the blocks of a transformer, attention
is cut by heads; both processes compute all scores, which are few.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)
from torch.distributed.tensor.parallel.style import ParallelStyle
from torch.nn import functional

from benchmarks._recipe import Recipe, read_arrays
from benchmarks._torch_blocks import cuts_of
from benchmarks._torch_group import PARTS, GroupPlayer, serve_group
from benchmarks._torch_models import GPT2, HEADS, Block
from benchmarks._torch_network import Translated


class TensorParallelPlayer(GroupPlayer):
    """Plays its half of every layer.

    Args:
        folder: of the recipe: dense layers or blocks, then a softmax over the scores of the last layer.
        rank: which half.
        meeting: a file by which the two find one another.
    """

    def __init__(self, folder: Path, rank: int, meeting: Path) -> None:
        super().__init__(rank, meeting)
        recipe, arrays = Recipe.read(folder), read_arrays(folder)
        whole = Translated(recipe, arrays, "eager")
        self._inputs = whole.inputs(arrays[recipe.inputs])
        self._target = whole.target(arrays[recipe.target])
        layers, mesh = whole.layers, init_device_mesh("cpu", (PARTS,))
        if isinstance(layers, GPT2):
            self._layers: nn.Module = parallelize_module(layers, mesh, _by_heads(layers))
            layers.head.weight = layers.wte.weight  # cutting has made two of it
        else:
            self._layers = parallelize_module(layers, mesh, cuts_of(layers) or _in_turn(layers))
        # A fused update knows no DTensor, so it sees each process's own rows, in the same memory.
        given = list(self._layers.parameters())
        self._cut = [p for p in given if isinstance(p, DTensor)]
        self._own = [nn.Parameter(p.to_local().detach()) for p in self._cut]
        whole_ones = [p for p in given if not isinstance(p, DTensor)]
        self._optimiser = torch.optim.SGD([*self._own, *whole_ones], lr=recipe.rate, fused=True)

    def step(self) -> float:
        self._layers.zero_grad()
        with loss_parallel():
            scores = self._layers(self._inputs)
            loss = functional.cross_entropy(scores.flatten(0, -2), self._target.flatten())
            loss.backward()
        for cut, own in zip(self._cut, self._own, strict=True):
            assert isinstance(cut.grad, DTensor)
            own.grad = cut.grad.to_local()
        self._optimiser.step()
        return float(loss.item())


def _in_turn(layers: nn.Module) -> dict[str, ParallelStyle]:
    """Dense layers by outputs and by inputs in turn, and the last by outputs."""
    dense = [name for name, module in layers.named_children() if isinstance(module, nn.Linear)]
    turns: tuple[ParallelStyle, ...] = (ColwiseParallel(), RowwiseParallel())
    cuts = {name: turns[number % 2] for number, name in enumerate(dense)}
    cuts[dense[-1]] = ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)
    return cuts


def _by_heads(whole: GPT2) -> dict[str, ParallelStyle]:
    """Attention by heads, wide layers by units, and the table of words by words; the loss of cut scores."""
    cuts: dict[str, ParallelStyle] = {"wte": RowwiseParallel(input_layouts=Replicate())}
    cuts["head"] = ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)
    for number, block in enumerate(whole.h):
        assert isinstance(block, Block)
        block.heads = HEADS // PARTS
        for given in (block.c_attn.weight, block.c_attn.bias):  # each half: its queries, keys and values
            halves = given.data.unflatten(0, (3, PARTS, -1)).transpose(0, 1)
            given.data = halves.flatten(0, 2).contiguous()
        for first, last in (("c_attn", "c_proj"), ("c_fc", "c_out")):
            cuts |= {f"h.{number}.{first}": ColwiseParallel(), f"h.{number}.{last}": RowwiseParallel()}
    return cuts


def main() -> None:
    folder = Path(sys.argv[1])
    serve_group(
        "_torch_tensor_parallel",
        sys.argv[1:2],
        lambda rank, meeting: TensorParallelPlayer(folder, rank, meeting),
    )


if __name__ == "__main__":
    main()
