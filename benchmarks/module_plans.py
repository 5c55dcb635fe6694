"""Plans that the search finds for modules of PyTorch, beside plans by hand: two parts of one thread each.

    python -m benchmarks.module_plans [--rounds N] [--json FILE]

ResNet-18 with pictures of 128 x 128, and a language model of two LSTM layers. By hand: stages, which keep
layers whole and overlap by micro-batches, and halves of each layer. Every plan has its predicted step, by the
simulator, and a measured one; the rows compare the automatic plan with the best one by hand.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from typing import Final

import torch
from torch import Tensor, nn

from benchmarks._harness import Row, in_turn, options, print_table, ratios, report, row, spread
from benchmarks._machine import describe
from benchmarks._networks import data, parameters
from benchmarks._parts import Parts
from benchmarks._rounds import Rounds
from benchmarks._torch_models import ResNet18
from partita.engine import SGD
from partita.engine.pytorch.torch_module import TorchModule
from partita.layers import Graph
from partita.partitioner import Cluster, Plan, Whole, partition

AUTOMATIC: Final = "automatic"
HALVES: Final = "halves of each layer"
WORDS: Final = 4_000
POSITIONS: Final = 32
UNITS: Final = 256
STEPS: Final = 2
"""Measured in each turn; the turn's figure is their median."""

AGREE: Final = 1e-3
"""By how much the losses of plans without micro-batches may differ, relatively, after the same steps."""


class LanguageModel(nn.Module):
    """Scores of the next word at each position, by two LSTM layers."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, UNITS)
        self.recurrent = nn.LSTM(UNITS, UNITS, 2, batch_first=True)
        self.scores = nn.Linear(UNITS, WORDS)

    def forward(self, words: Tensor) -> Tensor:
        found: Tensor = self.scores(self.recurrent(self.table(words))[0])
        return found


MODULES: Final[dict[str, tuple[type[nn.Module], Tensor, int, Mapping[str, str]]]] = {
    "ResNet-18": (
        ResNet18,
        torch.empty(2, 3, 128, 128),
        16,
        {"stages at layer2": "layer2", "stages at layer3": "layer3"},
    ),
    "LSTM": (
        LanguageModel,
        torch.empty(2, POSITIONS, dtype=torch.int64),
        64,
        {"stages at the second LSTM": "recurrent_1", "stages at the scores": "scores"},
    ),
}
"""By name: the module, an input, examples of a minibatch, and the first layer of the second stage by hand."""


def graph_of(name: str) -> Graph:
    """Returns the network of a module, with a loss."""
    torch.manual_seed(0)
    make, like, _, _ = MODULES[name]
    return TorchModule(make(), (like,), loss="cross-entropy", target="class").network.graph()


def plans_of(name: str, graph: Graph) -> dict[str, Plan]:
    """Returns the plan that the search finds, and those by hand."""
    batch, cluster = MODULES[name][2], Cluster.local(2)
    found = {
        AUTOMATIC: partition(graph, cluster, batch=batch),
        HALVES: partition(graph, cluster, batch=batch, strategy="balanced"),
    }
    layers = [grid.name for grid in graph.computed]
    for title, first in MODULES[name][3].items():
        begin = next(n for n, layer in enumerate(layers) if layer.startswith(first))
        cuts = {layer: Whole(int(n >= begin)) for n, layer in enumerate(layers)}
        plan = partition(graph, cluster, batch=batch, cuts=cuts, micro_batches=1)
        found |= {f"{title}, {n} micro-batches": plan.with_micro_batches(n) for n in (1, 2, 4)}
    return found


def _step_s(parts: Parts) -> float:
    """Returns the median of a few steps (seconds)."""
    return statistics.median(parts.begin(STEPS).result()[0])


def measured(plans: Mapping[str, Plan], graph: Graph, batch: int, rounds: Rounds) -> dict[str, list[float]]:
    """Measures a step of each plan (seconds in each round); all of them learn the same."""
    with ExitStack() as stack:
        given = parameters(graph), data(graph, batch), SGD(0.01)
        parts = {name: stack.enter_context(Parts(plan, *given)) for name, plan in plans.items()}
        losses = {name: one.begin(2).result()[1][-1] for name, one in parts.items()}
        whole = [losses[name] for name, plan in plans.items() if plan.micro_batches == 1]
        if max(whole) - min(whole) > AGREE * max(whole):  # batch normalisation sees micro-batches
            raise SystemExit(f"the plans learn different things: {losses}")
        turns = {name: partial(_step_s, one) for name, one in parts.items()}
        return in_turn(turns, rounds=rounds)


def main() -> None:
    """Predicts and measures the plans of each module, and compares."""
    asked = options(__doc__ or "", rounds=3, measurements=len(MODULES))
    print(describe(), flush=True)
    rows: list[Row] = []
    for name, (_, _, batch, _) in MODULES.items():
        graph = graph_of(name)
        plans = plans_of(name, graph)
        seconds = measured(plans, graph, batch, asked.rounds)
        lines = [
            (
                plan,
                f"{1e3 * found.predicted_step_s:.0f} ms",
                spread([1e3 * one for one in seconds[plan]], unit=" ms"),
            )
            for plan, found in plans.items()
        ]
        print_table(f"{name}, batch {batch}, two parts", ("plan", "predicted", "measured"), lines)
        best = min(
            (one for one in seconds if one != AUTOMATIC), key=lambda one: statistics.median(seconds[one])
        )
        rows.append(
            row(
                f"{name}: automatic",
                ratios(seconds[best], seconds[AUTOMATIC]),
                at_least=1.0,
                note=f"over {best}",
            )
        )
    report("automatic plans over the best by hand", rows, file=asked.json)


if __name__ == "__main__":
    main()
