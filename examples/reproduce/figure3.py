"""Figure 3 of the paper, simulated: the speed-up of one model on more machines of 2011 and 2012.

    python -m examples.reproduce.figure3            (a minute or two; trains nothing)

prints a table for each network and draws docs/pictures/figure3.svg. The assumptions are those of `Assumed`,
the same for all four networks. docs/figure3.md discusses them; figure3_guesses.py, beside this file, varies
each of them.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from partita.engine.view.curves import Curve, Mark, Panel, draw_curves
from partita.layers import (
    Dense,
    L2Pool2D,
    LocalContrastNormalisation2D,
    LocallyConnected2D,
    Network,
    OneVsRest,
    SoftmaxCrossEntropy,
)
from partita.partitioner import Cluster, Link, Machine, Plan, Tiles, partition

ACROSS = {1: (1, 1), 2: (2, 1), 4: (2, 2), 8: (4, 2), 16: (4, 4), 32: (8, 4), 64: (8, 8), 81: (9, 9)}
"""For each number of machines the tiles of a picture, down and across."""
STEPS = 5
"""Steps simulated with machines of varying speed; the result is their mean."""


@dataclass(frozen=True)
class Assumed:
    """Machines and links of the time, each number with its source or as a guess."""

    batch: int = 100  # Le et al., "Building high-level features ...", 2012, on the same system
    cores: int = 20  # "no more than 20 cores per machine" (section 5)
    spare_cores: int = 4  # a guess: 24 in two sockets; messages need not share those of the kernels
    core_flops_per_s: float = 5e9  # a guess: a quarter of SSE at 2.5 GHz (4 products and 4 sums a cycle)
    memory_bytes_per_s: float = 25e9  # STREAM on a server of 2010: 25 to 29 GB/s (AnandTech, Xeon X7560)
    instruction_s: float = 40e-6  # a guess: to start work on all cores, and to wait for its end
    latency_s: float = 250e-6  # half of "round trip within same datacenter: 500 us" (Dean, LADIS 2009)
    link_bytes_per_s: float = 100e6  # "send 2K bytes over 1 Gbps network: 20 us" (Dean, LADIS 2009)
    message_s: float = 100e-6  # a guess: a remote call keeps a thread on each side so long ...
    packing_bytes_per_s: float = 1e9  # a guess: ... and packs or unpacks what it carries at this rate
    spread: float = 0.24  # of times, over their mean: EC2 (Schad et al., 2010); from step to step, a guess

    def cluster(self, machines: int, *, seed: int | None = None) -> Cluster:
        """Machines of equal speed, or with a seed of the speeds in one step (times are lognormal)."""
        draw, sigma = random.Random(seed), math.sqrt(math.log(1 + self.spread**2))
        rates, step = (self.core_flops_per_s, self.memory_bytes_per_s), self.instruction_s
        one = Machine("one", self.cores, *rates, instruction_s=step, cores=self.cores + self.spare_cores)
        each, packing = self.message_s, self.packing_bytes_per_s
        link = Link(self.latency_s, self.link_bytes_per_s, True, each, each, packing, packing)
        drawn = [draw.lognormvariate(-(sigma**2) / 2, sigma) for _ in range(machines)]
        times = [1.0] * machines if seed is None else drawn
        return Cluster(tuple(replace(one, name=f"m{n}", speed=1 / t) for n, t in enumerate(times)), link)


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
    net = Network("images")
    states = net.input("picture", shape=(size, size, 3))
    for n, (pool, stride) in enumerate(((3, 1), (3, 1), (last, last)), start=1):
        states = LocallyConnected2D(filters, kernel_size=10, name=f"filters{n}")(states)
        states = L2Pool2D(pool, stride=stride, name=f"pool{n}")(states)
        states = LocalContrastNormalisation2D(5, name=f"normalised{n}")(states)
    net.loss = OneVsRest(name="loss")(Dense(classes, name="scores")(states), net.target("label"))
    return net


def plan_of(network: Network, machines: int, assumed: Assumed) -> Plan:
    """Equal pieces: dense layers by nodes, pictures in tiles as square as can be.

    A picture with fewer places than machines lies on some of them, evenly chosen.
    """
    (down, right), graph, cuts = ACROSS[machines], network.graph(), {}
    for grid in graph.computed:
        if len(grid.shape) == 3 and machines > 1:
            rows, columns = chosen(down, grid.shape[0]), chosen(right, grid.shape[1])
            owners = tuple(row * right + column for row in rows for column in columns)
            cuts[grid.name] = Tiles(owners, (len(rows), len(columns)))
    return partition(graph, assumed.cluster(machines), batch=assumed.batch, cuts=cuts, strategy="balanced")


def chosen(count: int, extent: int) -> list[int]:
    """Returns at most `extent` of the indices below `count`, with the first and the last."""
    most = min(count, extent)
    return [round(n * (count - 1) / max(most - 1, 1)) for n in range(most)]


def step_s(plan: Plan, assumed: Assumed) -> float:
    """Seconds of a step of SGD, the mean over several; alone, that is a step at the machine's mean speed."""
    machines = len(plan.cluster)
    clusters = [assumed.cluster(machines, seed=seed) for seed in range(STEPS)] if machines > 1 else []
    return fmean(plan.on(cluster).predicted_step_s for cluster in clusters or [plan.cluster])


def speed_ups(network: Network, counts: Sequence[int] = tuple(ACROSS)) -> Iterator[tuple[float, ...]]:
    """(machines, seconds of a step, speed-up, speed-up without variance) for each number of machines from 1
    on.
    """
    alone, assumed = 0.0, Assumed()
    for machines in counts:
        plan = plan_of(network, machines, assumed)
        steady, varying = plan.predicted_step_s, step_s(plan, assumed)
        alone = alone or steady
        yield machines, varying, alone / varying, alone / steady


def simulated(network: Network, paper: dict[float, str]) -> tuple[Curve, Curve]:
    """Speed-ups with variance and without, printed as they come, beside what the paper says."""
    name, found = f"{network.name}, {network.graph().n_parameters / 1e6:,.0f}M parameters", []
    print(f"\n{name}\nmachines        step  speed-up  without variance  the paper", flush=True)
    for machines, took, up, steady in speed_ups(network):
        found.append((machines, up, steady))
        row = f"{machines:8}  {took * 1e3:7,.0f} ms {up:8.2f}x {steady:16.2f}x  {paper.get(machines, '')}"
        print(row.rstrip(), flush=True)
    varying = Curve(name, tuple((n, up) for n, up, _ in found))
    return varying, Curve("", tuple((n, up) for n, _, up in found), dashed=True)


def main(target: Path = Path("docs/pictures/figure3.svg")) -> None:
    """Simulates all four, prints and draws."""
    below = simulated(speech(), {8: "2.2x, its highest"})
    drawn: tuple[Curve, ...] = (*below, *simulated(image(8), {}), *simulated(image(16), {}))
    drawn += simulated(image(36), {81: "more than 12x"})
    axes, peak = ("machines per model", "speed-up"), Mark(8, 2.2, "2.2 at 8")
    most = Mark(81, 12, "more than 12 at 81")
    panels = Panel(drawn, axes, tuple(ACROSS), (peak, most)), Panel(below, axes, tuple(ACROSS), (peak,), 160)
    about = "machines and links of 2011 and 2012 · dashed: without variance · rings: the paper's text"
    target.write_text(draw_curves("Speed-up of one model, simulated", about, panels), encoding="utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
