"""Two parts of one thread each, against one part and PyTorch: a training step.

    python -m benchmarks.two_parts [--rounds N] [--rows speech,first,image,blocks,gpt2] [--json FILE]

Forward, backward and the SGD update, float32, random data: the speech network of 41,777,152 parameters, the
first image layer, the three-stage image network, a transformer of two blocks, and a GPT-2 that `from_torch`
makes of the module that PyTorch plays. Parts are processes that share memory. The ceiling is what two
independent 1-part processes reach side by side, against one alone: no cut can do better on this machine.
PyTorch plays the speech network and the transformers in eager mode, and cut over two processes by its tensor
parallelism over gloo. The transformer is also cut by heads and units, with the traffic of tensor parallelism,
and in two stages, as by PyTorch's pipelining over gloo; so is the GPT-2 by PyTorch.
"""

from __future__ import annotations

import math
import os
import statistics
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks import _blocks
from benchmarks._harness import Options, Row, in_turn, options, print_table, ratios, report, row, spread
from benchmarks._limits import limits
from benchmarks._machine import describe
from benchmarks._networks import WORKS, data, flops, parameters, write
from benchmarks._parts import Parts
from benchmarks._table import Player
from benchmarks._torch_models import BLOCKS
from benchmarks._worker import Worker, threads_of
from partita.engine import SGD
from partita.partitioner import Cluster, partition

AGREE: Final = 1e-4
"""By how much losses may differ, relatively, after the first steps."""
CHECKED: Final = 3
"""Steps whose losses are compared."""

ONE, OTHER, TWO, BOTH = "1 part", "another 1 part", "2 parts", "two independent 1 parts"
EAGER_1, EAGER_2 = "torch eager, 1 thread", "torch eager, 2 threads"
CUT_2, STAGES_2 = "torch tensor parallelism, 2 processes", "torch pipelining, 2 processes"
BY_WEIGHTS, IN_STAGES = "2 parts, by heads and units", "2 parts, in stages"
TORCH: Final = (EAGER_1, EAGER_2, CUT_2, STAGES_2)
MICRO_BATCHES: Final = 4
"""Of the cuts in stages."""


@dataclass(frozen=True)
class Group:
    """A network that is cut.

    Args:
        title: what it is called.
        batch: examples in a minibatch.
        steps: measured in each turn, after one that is not; the turn's figure is their median.
        gain: that two parts should reach.
        torch: forms in which PyTorch plays it too.
        further: whether there are more cuts than the automatic one.
    """

    title: str
    batch: int
    steps: int
    gain: float
    torch: tuple[str, ...] = ()
    further: bool = False


GROUPS: Final = {
    "speech": Group("speech network", 128, 3, 1.85, torch=TORCH[:3]),
    "first": Group("first image layer", 128, 9, 1.9),
    "image": Group("three-stage image network", 32, 3, 1.9),
    "blocks": Group("transformer of two blocks", 32, 2, 1.5, torch=TORCH, further=True),
    "gpt2": Group("GPT-2 by from_torch", 8, 2, 1.5, torch=TORCH),
}
"""By the name of the network, which `--rows` takes."""


def main() -> None:
    """Measures, checks that all of a group learn the same, and reports."""
    asked = options(__doc__ or "", rounds=7, rows=tuple(GROUPS))
    print(describe(), flush=True)
    found = [line for name in asked.rows for line in _measured(name, asked)]
    print(
        f"load at the end {os.getloadavg()[0]:.1f}; above the processes of one variant, others were at work"
    )
    report("two parts, a training step", found, file=asked.json)


def _measured(name: str, asked: Options) -> list[Row]:
    group = GROUPS[name]
    with ExitStack() as stack:
        parts = {called: stack.enter_context(one) for called, one in parts_of(name).items()}
        torch = _torch(name, stack)
        check_losses(
            {called: p.begin(CHECKED).result()[1] for called, p in parts.items()}
            | {called: worker.call("play", CHECKED)["losses"] for called, worker in torch.items()}
        )
        for some in parts.values():
            some.forget()
        busy: dict[str, list[float]] = {}
        machine = stack.enter_context(limits(1))
        measured = in_turn(variants(parts, torch, machine, group.steps, busy), rounds=asked.rounds)
        used = {called: some.used_s / len(some.played) for called, some in parts.items()}
    used |= {called: statistics.median(found) for called, found in busy.items()}
    print_seconds(group, measured, used)
    for called, some in parts.items():
        if called not in (ONE, OTHER):
            print_parts(called, some)
    return rows(name, measured)


def parts_of(name: str) -> dict[str, Parts]:
    """Partita's variants, by name."""
    group, work = GROUPS[name], WORKS[name]
    graph = work.network().graph()
    initial, batch = parameters(graph), data(graph, group.batch)
    plans = [partition(graph, Cluster.local(machines=n), batch=group.batch) for n in (1, 1, 2)]
    found = {
        called: Parts(plan, initial, batch, SGD(work.rate))
        for called, plan in zip((ONE, OTHER, TWO), plans, strict=True)
    }
    if group.further:
        two = Cluster.local(machines=2)
        plan = partition(_blocks.blocks("weights"), two, batch=group.batch)
        found[BY_WEIGHTS] = Parts(plan, _blocks.of_weights(initial), batch, SGD(work.rate))
        cuts = _blocks.in_stages(2)
        plan = partition(graph, two, batch=group.batch, cuts=cuts, micro_batches=MICRO_BATCHES)
        found[IN_STAGES] = Parts(plan, initial, batch, SGD(work.rate))
    return found


def _torch(name: str, stack: ExitStack) -> dict[str, Worker]:
    """Starts the players of PyTorch."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    write(name, GROUPS[name].batch, folder)
    eager, threads = Player("_torch_player", "eager"), threads_of(1)
    blocks = BLOCKS if name == "gpt2" else _blocks.BLOCKS
    stages = str(folder), str(blocks // 2), str(MICRO_BATCHES)
    starts: dict[str, Callable[[], Worker]] = {
        EAGER_1: lambda: eager.start(folder, 1),
        EAGER_2: lambda: eager.start(folder, 2),
        CUT_2: lambda: Worker("_torch_tensor_parallel", str(folder), environment=threads),
        STAGES_2: lambda: Worker("_torch_pipeline", *stages, environment=threads),
    }
    return {called: stack.enter_context(starts[called]()) for called in GROUPS[name].torch}


def variants(
    parts: Mapping[str, Parts],
    torch: Mapping[str, Worker],
    machine: Worker,
    steps: int,
    busy: dict[str, list[float]],
) -> dict[str, Callable[[], float]]:
    """The variants of a round: seconds of a step, throughput of two at once, and the limits.

    `busy` collects for how long processors were busy with a step of PyTorch.
    """

    def both() -> float:
        playing = [parts[name].begin(1 + steps) for name in (ONE, OTHER)]
        return sum(1.0 / statistics.median(future.result()[0][1:]) for future in playing)

    def of_torch(name: str) -> float:
        played = torch[name].call("play", 1 + steps)
        busy.setdefault(name, []).append(played["busy_s"] / (1 + steps))
        return statistics.median(played["seconds"][1:])

    def step(name: str) -> Callable[[], float]:
        if name in torch:
            return lambda: of_torch(name)
        return lambda: statistics.median(parts[name].begin(1 + steps).result()[0][1:])

    timed = {name: step(name) for name in (*parts, *torch) if name != OTHER}
    rates = {"GFLOP/s": partial(machine.call, "gemm", "float32"), "GB/s": partial(machine.call, "memory")}
    return {**timed, BOTH: both, **rates}


def check_losses(losses: Mapping[str, list[float]]) -> None:
    """All networks began with the same parameters and saw the same batch, so they must learn the same."""
    expected = losses[ONE]
    for name, found in losses.items():
        if not all(math.isclose(a, b, rel_tol=AGREE) for a, b in zip(found, expected, strict=True)):
            raise SystemExit(
                f"the losses of '{name}' are {found}, those of '{ONE}' {expected}: not the same network"
            )
    print(
        f"losses of the first {CHECKED} steps agree: "
        + "; ".join(f"{name} {', '.join(f'{loss:.6f}' for loss in found)}" for name, found in losses.items())
    )


def print_seconds(group: Group, measured: Mapping[str, list[float]], used: Mapping[str, float]) -> None:
    """Step times and limits, with their spread over the rounds, and the processor time of a step."""
    lines = [
        (name, spread([1e3 * s for s in measured[name]], unit="ms"), f"{1e3 * used[name]:.0f} ms")
        for name in used
        if name != OTHER
    ]
    lines.append((BOTH, spread(measured[BOTH], unit="steps/s", digits=2), ""))
    gemm, memory = measured["GFLOP/s"], measured["GB/s"]
    lines.append(("limit: matrix products, 1 thread", spread(gemm, unit="GFLOP/s", digits=0), ""))
    lines.append(("limit: memory, 1 thread", spread(memory, unit="GB/s"), ""))
    title = f"{group.title}, batch {group.batch}: median (min to max) of the rounds"
    print_table(title, ("what", "figure", "processor time"), lines)


def print_parts(called: str, parts: Parts) -> None:
    """Prints the parts of a 2-part step's time; idle parts wait for a message or for the processor."""
    lines = []
    for machine in range(len(parts.plan.cluster)):
        busy = [1e3 * step.busy_s[machine] for step in parts.played]
        waits = [1e3 * (step.step_s - step.busy_s[machine]) for step in parts.played]
        sent = [message.n_bytes for message in parts.plan.messages if message.source == machine]
        lines.append(
            (f"part {machine}", spread(busy), spread(waits), f"{len(sent)}", f"{sum(sent) / 2**20:.2f}")
        )
    heads = (f"{called}, a step", "busy in kernels (ms)", "waits (ms)", "messages sent", "MiB sent")
    print_table("where the time goes, over all steps", heads, lines)


def rows(name: str, measured: Mapping[str, list[float]]) -> list[Row]:
    """Returns the comparisons as rows."""
    group, one, two = GROUPS[name], measured[ONE], measured[TWO]
    ceiling = [a * b for a, b in zip(one, measured[BOTH], strict=True)]
    gain = ratios(one, two)
    note = f"ceiling {spread(ceiling, digits=2)}"
    found = [
        row(f"{name}: 2 parts over 1 part", gain, at_least=group.gain, note=note),
        row(f"{name}: 2 parts, share of the ceiling", ratios(gain, ceiling), at_least=0.97, note=""),
    ]
    if group.torch:
        found += _beside_torch(name, measured)
    return found


def _beside_torch(name: str, measured: Mapping[str, list[float]]) -> list[Row]:
    group, one = GROUPS[name], measured[ONE]
    work = 1e-9 * flops(WORKS[name].network().graph(), group.batch)
    gemm = [s * rate / work for s, rate in zip(one, measured["GFLOP/s"], strict=True)]
    limit = f"a step takes {statistics.median(gemm):.2f}x its matrix products at this machine's rate"
    alone = measured[EAGER_1]
    theirs = [min(some) for some in zip(*(measured[called] for called in group.torch[1:]), strict=True)]
    gains = ", ".join(
        f"{called} {statistics.median(ratios(alone, measured[called])):.2f}" for called in group.torch[1:]
    )
    found = [
        row("1 part over torch eager, 1 thread", ratios(alone, one), at_least=1.15, note=limit),
        row(
            "2 parts over torch's fastest of two",
            ratios(theirs, measured[TWO]),
            at_least=1.15,
            note=f"torch's own gains: {gains}",
        ),
    ]
    for ours, torch, note in ((BY_WEIGHTS, CUT_2, "same cut"), (IN_STAGES, STAGES_2, "same cut")):
        if ours in measured and torch in measured:
            gain = ratios(measured[torch], measured[ours])
            found.append(row(f"{ours}, over {torch}", gain, at_least=1.0, note=note))
    return found


if __name__ == "__main__":
    main()
