"""A cut network as a module: a step of PyTorch's SGD through `as_module`, beside `Session.step` and eager.

    python -m benchmarks.as_module [--rounds N] [--json FILE]

All three train the same module on one thread of this process, from the same numbers: forward, backward,
update. Times are those that the process's threads computed (`time.process_time`), so that other work on the
machine counts for little. The last column has the bytes of parameters, which a step through `as_module`
copies to the part and back.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

import numpy as np
import torch
from torch import nn

from benchmarks._harness import in_turn, options, print_table, ratios, readable_seconds, report, row
from benchmarks._machine import describe
from partita.engine import SGD, Session, as_module, from_torch
from partita.engine.parameters import initialise
from partita.layers import HalfSquaredError
from partita.layers.text import readable_bytes
from partita.partitioner import Cluster, partition

BATCH: Final = 32
STEPS: Final = 10


class Block(nn.Module):
    """A residual block over pictures, and scores of its means."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 32, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(32)
        self.second = nn.Conv2d(32, 32, 3, padding=1)
        self.scores = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.first(x)))
        x = torch.relu(x + self.second(x))
        found: torch.Tensor = self.scores(x.mean(dim=(2, 3)))
        return found


def layers() -> nn.Module:
    """Dense layers, with far more parameters than activations."""
    return nn.Sequential(
        nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
    )


MODULES: Final = (
    ("a block of convolutions", Block, (3, 32, 32), (0.8, 0.5)),
    ("dense layers", layers, (1024,), (0.4, 0.3)),
)
"""Name, module, shape of an example, and the least ratios of `Session.step` and eager to `as_module`."""


def players(module: nn.Module, shape: tuple[int, ...], stack: ExitStack) -> dict[str, Callable[[], float]]:
    """Returns what plays some steps, and the processor's seconds of one."""
    net = from_torch(module, (torch.empty(2, *shape),), name="net")
    net.loss = HalfSquaredError()(net.output, net.target("y"))
    plan = partition(net, Cluster.local(machines=1, threads=1), batch=BATCH)
    draw = np.random.default_rng(0)
    x, y = (draw.normal(size=(BATCH, *some)).astype("float32") for some in (shape, (10,)))
    batch = {net.graph().inputs[0].name: x, "y": y}
    start = initialise(plan.graph.parameters.values(), 0)
    session = stack.enter_context(Session(plan, start, train=True, optimizer=SGD(1e-3), hosts="inline"))
    parts = stack.enter_context(as_module(plan))

    def by_session() -> None:
        session.step(batch)

    def by(one: nn.Module) -> Callable[[], None]:
        optimizer, tensors = (
            torch.optim.SGD(one.parameters(), 1e-3),
            (torch.from_numpy(x), torch.from_numpy(y)),
        )

        def step() -> None:
            optimizer.zero_grad()
            (0.5 / BATCH * (one(tensors[0]) - tensors[1]).square().sum()).backward()
            optimizer.step()

        return step

    return {
        "eager": _timed(by(module)),
        "Session.step": _timed(by_session),
        "as_module": _timed(by(parts)),
    }


def _timed(step: Callable[[], None]) -> Callable[[], float]:
    def measure() -> float:
        step()
        began = time.process_time()
        for _ in range(STEPS):
            step()
        return (time.process_time() - began) / STEPS

    return measure


def main() -> None:
    """Measures both modules, and reports."""
    asked = options(__doc__ or "", rounds=7, measurements=2)
    print(describe(), flush=True)
    torch.set_num_threads(1)
    rows = []
    for name, module, shape, floors in MODULES:
        with ExitStack() as stack:
            found = in_turn(players(module(), shape, stack), rounds=asked.rounds)
        copied = readable_bytes(sum(one.numel() * one.element_size() for one in module().parameters()))
        lines = [(player, readable_seconds(seconds), copied) for player, seconds in found.items()]
        print_table(f"a step of {name}, batch {BATCH}", ("player", "processor time", "parameters"), lines)
        for other, floor in zip(("Session.step", "eager"), floors, strict=True):
            compared = ratios(found[other], found["as_module"])
            note = f"{copied} of parameters, there and back"
            rows.append(row(f"{name}: {other} over as_module", compared, at_least=floor, note=note))
    report("a cut network as a module", rows, file=asked.json)


if __name__ == "__main__":
    main()
