"""Figure 3 of the paper, simulated: what one model gains from more machines of 2011 and 2012.

    python -m examples.figure3            (takes some minutes; trains nothing)

prints a table for each network and draws docs/pictures/figure3.svg. What is assumed stands here, each with
its source or as a guess; docs/figure3.md discusses it. The same assumptions hold for all four networks.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from partita.layers import (
    Dense,
    L2Pool2D,
    LocalContrastNormalisation2D,
    LocallyConnected2D,
    Network,
    OneAgainstAll,
    SoftmaxCrossEntropy,
)
from partita.partitioner import Cluster, Link, Machine, Plan, partition
from partita.partitioner.cost import Costs
from partita.partitioner.drawing.curves import Curve, Mark, draw_curves
from partita.partitioner.simulate import play

BATCH = 100  # of Le et al., "Building high-level features ...", 2012, on the same system; ours is silent
CORES = 20  # "no more than 20 cores per machine" (section 5)
FLOPS_PER_CORE = 5e9  # a guess: a quarter of what SSE does at 2.5 GHz (4 products and 4 sums a cycle)
MEMORY_BYTES_PER_S = 25e9  # a server's best on STREAM in 2010: 25 to 29 GB/s (AnandTech on the Xeon X7560)
SPARE_CORES = 4  # a guess: 24 in two sockets; messages need not share those of the kernels
LINK = Link(
    latency_s=250e-6,  # half of "round trip within the same data center: 500 us" (Dean, 2009)
    bytes_per_s=100e6,  # "send 2K bytes over a 1 Gbps network: 20 us" (Dean, 2009)
    send_s=100e-6,  # a guess: a remote call keeps a thread of each side so long ...
    receive_s=100e-6,
    send_bytes_per_s=1e9,  # ... and packs and unpacks what it carries at this rate
    receive_bytes_per_s=1e9,
)
SPREAD = 0.24  # of a machine's speed from step to step, over its mean; measured on EC2 (Schad et al., 2010)
SEEDS = 5
MACHINES = (1, 2, 4, 8, 16, 32, 64, 81)


def speech() -> Network:
    """11 frames of 40 energies, four layers of 2,560 sigmoids, a softmax over 8,192 (section 5)."""
    net = Network("speech")
    states = net.input("frames", shape=440)
    for n in range(1, 5):
        states = Dense(2560, activation="sigmoid", name=f"hidden{n}")(states)
    net.loss = SoftmaxCrossEntropy(name="loss")(Dense(8192, name="scores")(states), net.target("label"))
    return net


def image(filters: int, *, size: int = 100, last: int = 11, classes: int = 21_000) -> Network:
    """Three stages of unshared 10 x 10 filters, pooling, normalisation (section 5); strides are inferred."""
    net = Network(f"image{filters}")
    states = net.input("picture", shape=(size, size, 3))
    for n, (pool, stride) in enumerate(((3, 1), (3, 1), (last, last)), start=1):
        states = LocallyConnected2D(filters, kernel_size=10, name=f"filters{n}")(states)
        states = L2Pool2D(pool, stride=stride, name=f"pool{n}")(states)
        states = LocalContrastNormalisation2D(5, name=f"normalised{n}")(states)
    net.loss = OneAgainstAll(name="loss")(Dense(classes, name="scores")(states), net.target("label"))
    return net


def cluster(machines: int, *, seed: int | None = None) -> Cluster:
    """So many machines of the time; with a seed, as fast as they are in one step (lognormal)."""
    draw, sigma = random.Random(seed), math.sqrt(math.log(1 + SPREAD**2))
    slower = [1.0 if seed is None else draw.lognormvariate(-(sigma**2) / 2, sigma) for _ in range(machines)]
    made = (
        Machine(
            f"m{n}",
            threads=CORES,
            cores=CORES + SPARE_CORES,
            flops_per_s=FLOPS_PER_CORE,
            bytes_per_s=MEMORY_BYTES_PER_S,
            speed=1 / slower[n],
        )
        for n in range(machines)
    )
    return Cluster(tuple(made), LINK)


@dataclass(frozen=True)
class Point:
    """Seconds of a step on so many machines: the mean of steps that vary, and of one that does not."""

    machines: int
    varying_s: float
    steady_s: float


def simulated(network: Network, counts: Sequence[int], *, seeds: int = SEEDS) -> list[Point]:
    """A step of SGD on each number of machines, with equal parts."""
    graph, found = network.graph(), []
    for count in counts:
        plan = partition(graph, cluster(count), batch=BATCH, strategy="balanced")
        steady = plan.predicted_step_s
        varying = fmean(step_s(plan, seed) for seed in range(seeds)) if count > 1 else steady
        found.append(Point(count, varying, steady))  # alone, the mean over many steps is that of a steady one
    return found


def step_s(plan: Plan, seed: int) -> float:
    """Seconds of a step of the same plan when machines are as fast as this seed says."""
    costs = Costs(plan.graph, cluster(len(plan.cluster), seed=seed), batch=plan.batch)
    return play(plan.programs, costs, plan.sizes).step_s


def curves(name: str, points: Sequence[Point]) -> list[Curve]:
    """Speed-ups over one machine."""
    first = points[0]
    varying = tuple((float(p.machines), first.varying_s / p.varying_s) for p in points)
    steady = tuple((float(p.machines), first.steady_s / p.steady_s) for p in points)
    return [Curve(name, varying), Curve("", steady, dashed=True)]


def main(target: Path = Path("docs/pictures/figure3.svg")) -> None:
    """Simulates all four, prints and draws."""
    drawn: list[Curve] = []
    for kind, network in (("speech", speech()), *(("images", image(m)) for m in (8, 16, 36))):
        name = f"{kind}, {network.graph().n_parameters / 1e6:,.0f}M parameters"
        points = simulated(network, MACHINES)
        pair = curves(name, points)
        drawn += pair
        print(name)
        for point, (_, up), (_, steady) in zip(points, pair[0].points, pair[1].points, strict=True):
            print(
                f"{point.machines:5}  {point.varying_s * 1e3:9,.1f} ms  {up:6.2f}x  {steady:6.2f}x",
                flush=True,
            )
    marks = [Mark(8, 2.2, "paper: 2.2 at 8"), Mark(81, 12, "paper: more than 12 at 81")]
    picture = draw_curves(
        "Speed-up of one model, simulated",
        "machines and links of 2011 and 2012 · dashed: without variance · rings: what the paper's text says",
        drawn,
        axes=("machines per model", "speed-up over one machine"),
        ticks=MACHINES,
        marks=marks,
    )
    target.write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
