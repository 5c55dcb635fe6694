"""Native kernels beside PyTorch: which of them are worth their lines on this machine.

    python -m benchmarks.gates [--rows NAME[,NAME]] [--rounds N] [--json FILE]

For typical shapes, in float32, one call of everything that a training step makes of a layer: forward, the
gradient of its inputs, and that of its parameters. The native kernel and the layer's form in PyTorch
(`forward`) take turns in every round, on the same numbers; the ratio is the
median over the rounds of PyTorch's time over the native one, with its spread. A native kernel stays where
the ratio is at least 1.3, with one thread and with two.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np
import torch

from benchmarks._harness import (
    Row,
    in_turn,
    options,
    ratios,
    readable_seconds,
    report,
    row,
    spread,
)
from benchmarks._machine import describe
from partita.engine.kernels import Arrays, Call, Kernel, KernelContext, LossKernel, ThreadPool, build
from partita.engine.kernels.calls import sequence
from partita.engine.kernels.tensors import array_of, on_host
from partita.layers import (
    Activation,
    Add,
    AveragePool2D,
    BinaryCrossEntropy,
    Conv2D,
    Dense,
    HalfSquaredError,
    L2Pool2D,
    Layer,
    LocalContrastNormalisation2D,
    LocallyConnected2D,
    Loss,
    MaxPool2D,
    Network,
    OneVsRest,
    SoftmaxCrossEntropy,
)

GATE: Final = 1.3
THREADS: Final = (1, 2)
LEAST_S: Final = 0.02
"""A round repeats a call until it has taken so long."""


@dataclass(frozen=True)
class Gate:
    """A layer over inputs of these shapes."""

    layer: Layer
    shapes: tuple[tuple[int, ...], ...]
    batch: int


GATES: Final[dict[str, Gate]] = {
    "dense": Gate(Dense(2560, activation="sigmoid"), ((2560,),), 128),
    "dense of few examples": Gate(Dense(2560, activation="sigmoid"), ((2560,),), 8),
    "locally connected": Gate(LocallyConnected2D(8, 10, activation="relu"), ((64, 64, 3),), 16),
    "convolution": Gate(Conv2D(32, 3, padding="same", activation="relu"), ((28, 28, 16),), 64),
    "convolution of few examples": Gate(Conv2D(32, 3, padding="same", activation="relu"), ((28, 28, 16),), 4),
    "max pool": Gate(MaxPool2D(2), ((28, 28, 32),), 64),
    "average pool": Gate(AveragePool2D(3, stride=2, padding="same"), ((28, 28, 32),), 64),
    "l2 pool": Gate(L2Pool2D(5, stride=2), ((48, 48, 8),), 32),
    "contrast normalisation": Gate(LocalContrastNormalisation2D(9), ((48, 48, 8),), 32),
    "relu": Gate(Activation("relu"), ((64, 512),), 64),
    "tanh": Gate(Activation("tanh"), ((64, 512),), 64),
    "add": Gate(Add(), ((64, 512), (64, 512)), 64),
    "softmax cross-entropy": Gate(SoftmaxCrossEntropy(), ((1000,),), 128),
    "one against the rest": Gate(OneVsRest(), ((21000,),), 32),
    "binary cross-entropy": Gate(BinaryCrossEntropy(), ((1000,),), 128),
    "half squared error": Gate(HalfSquaredError(), ((1000,),), 128),
}


def main() -> None:
    """Measures every gate with one thread and with two, and prints which kernels pass."""
    asked = options(__doc__ or "", rounds=5, rows=tuple(GATES))
    print(describe(), flush=True)
    rows: list[Row] = []
    for name in asked.rows:
        for threads in THREADS:
            seconds = measured(GATES[name], threads, asked.rounds)
            note = ", ".join(f"{player} {readable_seconds(found)}" for player, found in seconds.items())
            found = ratios(seconds["PyTorch"], seconds["native"])
            rows.append(row(f"{name}, x{threads}", found, at_least=GATE, note=note))
            print(f"{rows[-1].row:34} {spread(found, digits=2):24} {note}", flush=True)
    low = {one.row.rpartition(", x")[0] for one in rows if not one.holds}
    report("PyTorch's time over the native kernel's", rows, file=asked.json)
    print(f"below {GATE}: {', '.join(gate for gate in asked.rows if gate in low) or 'none'}")


def measured(gate: Gate, threads: int, rounds: int) -> dict[str, list[float]]:
    """The seconds of a training step's calls, by the native kernel and by PyTorch, in each round."""
    pool = ThreadPool(threads)
    torch.set_num_threads(threads)
    context, arrays = prepared(gate, threads)
    there = _on_torch(arrays)
    calls = {
        "native": step_of(build(context, arrays, pool), arrays),
        "PyTorch": step_of(build(replace(context, device="torch"), there, pool), there),
    }
    times = {name: partial(_seconds, call, _repeats(call)) for name, call in calls.items()}
    found = in_turn(times, rounds=rounds)
    pool.close()
    return found


def prepared(gate: Gate, threads: int) -> tuple[KernelContext, Arrays]:
    """The context of the whole layer, and its arrays with numbers of a normal distribution."""
    net, draw = Network("gate"), np.random.default_rng(0)
    inputs = [net.input(f"x{k}", shape=shape) for k, shape in enumerate(gate.shapes)]
    is_loss = isinstance(gate.layer, Loss)
    states = gate.layer(*inputs, net.target("y")) if is_loss else gate.layer(*inputs)
    net.loss = states if is_loss else ()
    graph = net.graph()
    grid = graph[states.name]
    sources = tuple(graph[name] for name in grid.sources)
    windows = tuple((0, source.n_rows) for source in sources)

    def normal(*shape: int) -> Any:
        return draw.normal(size=shape).astype(np.float32)

    given = [
        draw.integers(0, source.layer.classes, (*source.shape, gate.batch))
        if getattr(source.layer, "classes", None)
        else normal(*source.shape, gate.batch)
        for source in sources
    ]
    context = KernelContext(grid, (0, grid.n_rows), sources, windows, windows, gate.batch, threads=threads)
    return context, Arrays(
        inputs=tuple(given),
        output=np.zeros((*grid.shape, gate.batch), np.float32),
        grad_output=None if is_loss else normal(*grid.shape, gate.batch),
        grad_inputs=tuple(np.zeros(array.shape, np.float32) for array in given),
        parameters=tuple(normal(*parameter.shape) / 30 for parameter in grid.parameters),
    )


def _on_torch(arrays: Arrays) -> Arrays:
    """The same memory as tensors, but for results."""

    def tensor(array: Any, *, own: bool = False) -> Any:
        return None if array is None else array_of(on_host(array.copy() if own else array))

    return Arrays(
        inputs=tuple(map(tensor, arrays.inputs)),
        output=tensor(arrays.output, own=True),
        grad_output=tensor(arrays.grad_output, own=True),
        grad_inputs=tuple(tensor(array, own=True) for array in arrays.grad_inputs),
        parameters=tuple(map(tensor, arrays.parameters)),
    )


def step_of(kernel: Kernel, arrays: Arrays) -> Call:
    """Everything that a training step calls of a layer."""
    calls = [kernel.forward()]
    inputs = 1 if isinstance(kernel, LossKernel) else len(arrays.inputs)
    if not isinstance(kernel, LossKernel):
        calls.append(kernel.backward_activation())
    for source in range(inputs):
        window = kernel.context.grad_windows[source]
        calls.append(kernel.backward_input(source, (window,), accumulate=False))
    if arrays.parameters:
        empty: Callable[..., Any] = torch.zeros if kernel.context.device == "torch" else np.zeros
        out = [empty(tuple(one.shape), dtype=arrays.parameters[0].dtype) for one in arrays.parameters]
        calls.append(kernel.backward_parameters(out))
    return sequence(*calls)


def _repeats(call: Call) -> int:
    for _ in range(3):
        call()
    return max(1, round(LEAST_S / _seconds(call, 1)))


def _seconds(call: Call, n: int) -> float:
    begun = time.perf_counter()
    for _ in range(n):
        call()
    return (time.perf_counter() - begun) / n


if __name__ == "__main__":
    main()
