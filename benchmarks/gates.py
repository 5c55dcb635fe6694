"""Native kernels beside PyTorch: which of them are worth their lines on this machine.

    python -m benchmarks.gates [--rows NAME[,NAME]] [--rounds N] [--json FILE]

One call of everything that a training step makes of a layer, in float32: forward, the gradient of its
inputs, and that of its parameters. The native kernel and the fastest call of PyTorch that is known
(`_torch_calls.py`) take turns in every round, on the same numbers in the same layout, `[node axes ...,
example]`: a transposition that a call needs counts, as it would in a network. The ratio is the median over
the rounds of PyTorch's time over the native one, with its spread. Sizes are those of the benchmark networks,
and small ones. A native kernel stays where the ratio is at least 1.3, with one thread and with two. One
thread is timed by its processor time, which other work on the machine changes least.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
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
from benchmarks._rounds import Rounds
from benchmarks._torch_calls import best_call
from partita.engine.kernels import Arrays, Call, Kernel, KernelContext, LossKernel, ThreadPool, build
from partita.engine.kernels.calls import sequence
from partita.engine.kernels.kernel import no_op
from partita.engine.kernels.products.blas import blas_on_one_thread
from partita.layers import (
    Activation,
    Add,
    AveragePool2D,
    BatchNorm,
    Conv2D,
    Dense,
    Dropout,
    Full,
    L2Pool2D,
    Layer,
    LayerNorm,
    Linear,
    LocalContrastNormalisation2D,
    LocallyConnected2D,
    Loss,
    MaxPool2D,
    Network,
    Patch,
    Slice,
    SoftmaxCrossEntropy,
    node,
    per_edge,
    per_node,
)
from partita.partitioner.cluster.processor import processor
from partita.partitioner.cluster.products import products_for

GATE: Final = 1.3
THREADS: Final = (1, 2)
LEAST_S: Final = 0.01
"""A round repeats a call until it has taken so long."""


@dataclass(frozen=True)
class Gate:
    """A layer over inputs of these shapes."""

    layer: Layer
    shapes: tuple[tuple[int, ...], ...]
    batch: int


def leaky_sum(incoming, weight, bias):  # type: ignore[no-untyped-def]
    """A weighted sum, whose products run in the loops of the built-in layers."""
    total = bias
    for k in range(len(incoming)):
        total += weight[k] * incoming[k]
    return total if total > 0 else 0.01 * total


@node(Patch(3), scale=per_node("ones"))
def largest(incoming, scale):  # type: ignore[no-untyped-def]
    """No sum: loops are generated for it."""
    most = incoming[0]
    for k in range(1, len(incoming)):
        most = max(most, incoming[k])
    return scale * most


_OF_A_PATCH, _OF_ALL = (
    node(wiring, weight=per_edge("glorot"), bias=per_node("zeros"))(leaky_sum)
    for wiring in (Patch(3), Full())
)
_SIGMOID: Final = Dense(2560, activation="sigmoid")
_CONVOLUTION: Final = Conv2D(32, 3, padding="same", activation="relu")

GATES: Final[dict[str, Gate]] = {
    "dense speech": Gate(_SIGMOID, ((2560,),), 128),
    "dense speech 32 examples": Gate(_SIGMOID, ((2560,),), 32),
    "dense perceptron": Gate(Dense(128, activation="relu"), ((64,),), 32),
    "local first layer": Gate(LocallyConnected2D(8, 10, stride=2), ((100, 100, 3),), 32),
    "local first layer 8 examples": Gate(LocallyConnected2D(8, 10, stride=2), ((100, 100, 3),), 8),
    "local small": Gate(LocallyConnected2D(4, 3, activation="relu"), ((12, 12, 2),), 16),
    "convolution Caltech": Gate(Conv2D(640, 3, padding=1, activation="relu"), ((6, 9, 640),), 32),
    "convolution Caltech's second": Gate(Conv2D(256, 5, padding=2, activation="relu"), ((13, 18, 96),), 32),
    "convolution 64 examples": Gate(_CONVOLUTION, ((28, 28, 16),), 64),
    "max pool Caltech": Gate(MaxPool2D(3, stride=2), ((28, 38, 96),), 32),
    "max pool small": Gate(MaxPool2D(2), ((8, 8, 4),), 16),
    "average pool": Gate(AveragePool2D(3, stride=2, padding=1), ((28, 28, 32),), 64),
    "l2 pool three stages": Gate(L2Pool2D(3, stride=1), ((91, 91, 8),), 32),
    "l2 pool first": Gate(L2Pool2D(5), ((46, 46, 8),), 32),
    "l2 pool first 8 examples": Gate(L2Pool2D(5), ((46, 46, 8),), 8),
    "contrast normalisation three stages": Gate(LocalContrastNormalisation2D(5), ((89, 89, 8),), 32),
    "contrast normalisation small": Gate(LocalContrastNormalisation2D(5), ((12, 12, 4),), 16),
    "batch norm": Gate(BatchNorm(), ((32, 32, 64),), 32),
    "batch norm 8 examples": Gate(BatchNorm(), ((32, 32, 64),), 8),
    "layer norm": Gate(LayerNorm(), ((64, 256),), 32),
    "linear to 1024": Gate(Linear(1024), ((64, 256),), 32),
    "linear to 256": Gate(Linear(256), ((64, 1024),), 32),
    "relu": Gate(Activation("relu"), ((64, 512),), 64),
    "sigmoid": Gate(Activation("sigmoid"), ((64, 512),), 64),
    "tanh": Gate(Activation("tanh"), ((64, 512),), 64),
    "gelu": Gate(Activation("gelu"), ((64, 1024),), 32),
    "silu": Gate(Activation("silu"), ((64, 1024),), 32),
    "add": Gate(Add(), ((64, 256), (64, 256)), 32),
    "slice": Gate(Slice(256, 512), ((64, 768),), 32),
    "dropout": Gate(Dropout(0.5), ((2560,),), 128),
    "softmax cross-entropy speech": Gate(SoftmaxCrossEntropy(), ((8192,),), 128),
    "softmax cross-entropy perceptron": Gate(SoftmaxCrossEntropy(), ((10,),), 32),
    "softmax cross-entropy at positions": Gate(SoftmaxCrossEntropy(), ((64, 1000),), 8),
    "node with a sum of a patch": Gate(_OF_A_PATCH(8), ((28, 28, 4),), 32),
    "node with a sum of all": Gate(_OF_ALL(512), ((512,),), 64),
    "node with the largest of a patch": Gate(largest(4), ((28, 28, 4),), 32),
}


def main() -> None:
    """Measures every gate with one thread and with two, and prints which kernels pass."""
    asked = options(__doc__ or "", rounds=5, rows=tuple(GATES), measurements=len(THREADS))
    print(describe(), flush=True)
    rows: list[Row] = []
    for name in asked.rows:
        for threads in THREADS:
            seconds = measured(GATES[name], threads, asked.rounds)
            note = ", ".join(f"{player} {readable_seconds(found)}" for player, found in seconds.items())
            found = ratios(seconds["PyTorch"], seconds["native"])
            rows.append(row(f"{name}, x{threads}", found, at_least=GATE, note=note))
            print(f"{rows[-1].row:42} {spread(found, digits=2):24} {note}", flush=True)
    low = {one.row.rpartition(", x")[0] for one in rows if not one.holds}
    report("PyTorch's time over the native kernel's", rows, file=asked.json)
    print(f"below {GATE}: {'; '.join(gate for gate in asked.rows if gate in low) or 'none'}")


def measured(gate: Gate, threads: int, rounds: Rounds) -> dict[str, list[float]]:
    """The seconds of a training step's calls, by the native kernel and by PyTorch, in each round."""
    pool = ThreadPool(threads)
    torch.set_num_threads(threads)
    context, arrays = prepared(gate, threads)
    calls = {
        "native": step_of(build(context, arrays, pool), arrays),
        "PyTorch": best_call(context, arrays),
    }
    with blas_on_one_thread():
        clock = time.process_time if threads == 1 else time.perf_counter
        times = {name: partial(_seconds, call, _repeats(call), clock) for name, call in calls.items()}
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
    context = KernelContext(
        grid,
        (0, grid.n_rows),
        sources,
        windows,
        windows,
        gate.batch,
        threads=threads,
        products=products_for(processor()),
        training=True,
    )
    return context, Arrays(
        inputs=tuple(given),
        output=np.zeros((*grid.shape, gate.batch), np.float32),
        grad_output=None if is_loss else normal(*grid.shape, gate.batch),
        grad_inputs=tuple(np.zeros(array.shape, np.float32) for array in given),
        parameters=tuple(normal(*parameter.shape) / 30 for parameter in grid.parameters),
    )


def step_of(kernel: Kernel, arrays: Arrays) -> Call:
    """Everything that a training step calls of a layer."""
    calls = [kernel.forward()]
    inputs = 1 if isinstance(kernel, LossKernel) else len(arrays.inputs)
    slope = kernel.backward_activation()
    if slope is not no_op:  # in place: else the gradient would shrink from call to call
        calls += [partial(np.copyto, arrays.own_grad, arrays.own_grad.copy()), slope]
    for source in range(inputs):
        window = kernel.context.grad_windows[source]
        calls.append(kernel.backward_input(source, (window,), accumulate=False))
    if arrays.parameters:
        out: list[Any] = [np.zeros_like(one) for one in arrays.parameters]
        calls.append(kernel.backward_parameters(out))
    return sequence(*calls)


def _repeats(call: Call) -> int:
    for _ in range(3):
        call()
    return max(1, round(LEAST_S / _seconds(call, 1, time.perf_counter)))


def _seconds(call: Call, n: int, clock: Callable[[], float]) -> float:
    begun = clock()
    for _ in range(n):
        call()
    return (clock() - begun) / n


if __name__ == "__main__":
    main()
