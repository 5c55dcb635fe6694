"""Measures what the runtime adds to kernels: for an instruction, for a message, for a step.

Networks of layers that compute next to nothing are played over real hosts. In a *chain* each layer waits for
the one before it, on the other machine; in a *fan* one machine sends as many messages as there are layers,
which separates the work of a sender from that of a receiver. The time of a step beyond its kernels grows with
the number of layers; the slope is the cost of one instruction or message. Messages of each size are measured,
from the smallest on, until they take long enough to lie on a straight line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from partita.engine.profile.bench import Bench, StepTimes
from partita.layers import Activation, Network
from partita.partitioner import Cluster, Link, MessageTimes, Plan, Whole, partition

BATCH: Final = 16
SIZES: Final = tuple(4**n for n in range(3, 14))
"""Bytes of messages: from 64 B to 64 MiB."""
LEAST_SIZES: Final = 4
MOST_STEP_S: Final = 0.06
"""Seconds of a step after which no larger messages are measured, but for the least number of sizes."""
FEW: Final = 2
MANY: Final = 10
"""Numbers of layers of the two networks that are compared."""
STEPS: Final = 1000
BOTH_WAYS: Final = 0.7
"""Fraction of the rate that must be left to each direction for a link to count as full duplex."""
_DIGITS: Final = 4
"""Significant digits of the times of a link."""

DIRECTED: Final = 0.2
"""Fraction by which streams of large messages in the two directions must differ for each to have its link."""
_COMPARED: Final = 3
"""Sizes, the largest ones, at which they must differ so."""

Shape: TypeAlias = Literal["chain", "fan", "back", "both"]
_Case: TypeAlias = tuple[int, Shape, int]
"""Bytes of a message, the shape of the network, and the number of its layers."""
_KINDS: Final[tuple[tuple[Shape, int], ...]] = (("chain", FEW), ("chain", MANY), ("fan", FEW), ("fan", MANY))
"""Networks that are played for each size."""
_BACK: Final[tuple[tuple[Shape, int], ...]] = (("back", FEW), ("back", MANY))
"""Networks that are played too where the two directions may differ: fans in the other direction."""


@dataclass(frozen=True)
class LinkMeasurement:
    """Seconds that messages between two hosts take, for each size.

    Args:
        start_s: a step of several machines, without the work in it; some machines begin later than others.
        total_s: from when a message may be sent until it may be used.
        send_s, receive_s: work of the sender's and of the receiver's communication thread.
        stream_s: for each of many messages, in one direction.
        both_s: for each of many messages of the largest size, in both directions at once.
        n_bytes: the sizes.
        back_s: as `stream_s` in the other direction; empty if it was not measured.
    """

    start_s: float
    total_s: tuple[float, ...]
    send_s: tuple[float, ...]
    receive_s: tuple[float, ...]
    stream_s: tuple[float, ...]
    both_s: float
    n_bytes: tuple[int, ...] = (512, 1 << 16, 1 << 20)
    back_s: tuple[float, ...] = ()

    @property
    def directions(self) -> tuple[Link, Link] | None:
        """The link of each direction; None where they are alike, or were not measured.

        Messages of a chain go to and fro. A direction with longer streams takes so much more of their time.
        """
        if not self.back_s:
            return None
        streams = list(zip(self.stream_s, self.back_s, strict=True))
        shares = [(a - b) / max(a, b, 1e-9) for a, b in streams][-_COMPARED:]
        if not (min(shares) > DIRECTED or max(shares) < -DIRECTED):
            return None
        halves = [(a - b) / 2 for a, b in streams]
        there = [max(total + half, 0.0) for total, half in zip(self.total_s, halves, strict=True)]
        back = [max(total - half, 0.0) for total, half in zip(self.total_s, halves, strict=True)]
        return replace(self, total_s=tuple(there)).link, replace(self, total_s=tuple(back)).link

    @property
    def link(self) -> Link:
        """The link with these times as its table: none is lower for more bytes."""
        totals, sends, receives = map(never_less, (self.total_s, self.send_s, self.receive_s))
        rests = [max(t - s - r, 0.0) for t, s, r in zip(totals, sends, receives, strict=True)]
        latency_s = min(rests)
        links = never_less([rest - latency_s for rest in rests])
        rows = zip(self.n_bytes, *(map(_rounded, times) for times in (sends, links, receives)), strict=True)
        return Link(
            latency_s=_rounded(latency_s),
            both_ways=self.stream_s[-1] >= BOTH_WAYS * self.both_s,
            table=tuple(MessageTimes(*row) for row in rows),
        )


@dataclass(frozen=True)
class Runtime:
    """Seconds that a machine adds to its kernels: for an instruction, and for a step.

    `cold_s` is added to an instruction where kernels leave nothing of the runtime in the caches.
    """

    instruction_s: float
    step_s: float
    cold_s: float


def measure_runtime(bench: Bench) -> Runtime:
    """Measures the runtime on one machine."""
    plans = [_plan("chain", n, 1, 1) for n in (FEW, MANY)]
    few, many = (_beside_kernels(t) for t in bench.play(plans, steps=STEPS, shared_memory=True))
    each = max((many - few) / (MANY - FEW), 0.0)
    cold = [_beside_kernels(t) for t in bench.play(plans, steps=STEPS, shared_memory=True, cold=True)]
    return Runtime(
        each, max(few - (FEW + 1) * each, 0.0), max((cold[1] - cold[0]) / (MANY - FEW) - each, 0.0)
    )


def measure_link(
    bench: Bench, runtime: Runtime, *, shared_memory: bool, directions: bool = False
) -> LinkMeasurement:
    """Measures messages between two machines, of all sizes up to those whose steps take `MOST_STEP_S`.

    Args:
        bench: its hosts 0 and 1 are on the two machines.
        runtime: costs of the runtime.
        shared_memory: whether they are on one machine and share memory.
        directions: whether each direction is measured.
    """
    kinds = (*_KINDS, *_BACK) if directions else _KINDS
    times = _played(bench, [(n, *kind) for n in SIZES for kind in kinds], len(kinds), shared_memory)
    sizes = sorted({n for n, _, _ in times})
    last = sizes[-1]
    times |= _played(bench, [(last, "both", layers) for layers in (FEW, MANY)], 2, shared_memory)

    def pair(shape: Shape, size: int) -> tuple[StepTimes, StepTimes]:
        return times[size, shape, FEW], times[size, shape, MANY]

    chains, fans = [pair("chain", size) for size in sizes], [pair("fan", size) for size in sizes]
    worked = [_each([sum(times.communication_s) for times in chain]) for chain in chains]
    sends = [_share([times.communication_s for times in fan]) for fan in fans]
    totals = [
        max(_each([_beside_kernels(times) for times in chain]) - runtime.instruction_s, 0.0)
        for chain in chains
    ]
    worked = [min(both, total) for both, total in zip(worked, totals, strict=True)]  # some of it overlaps
    hops = (FEW - 1) * totals[0] + (FEW + 1) * runtime.instruction_s
    return LinkMeasurement(
        max(_beside_kernels(chains[0][0]) - hops, runtime.step_s),
        tuple(totals),
        tuple(share * both for share, both in zip(sends, worked, strict=True)),
        tuple((1.0 - share) * both for share, both in zip(sends, worked, strict=True)),
        tuple(_each([times.step_s for times in fan]) for fan in fans),
        _each([times.step_s for times in pair("both", last)]),
        tuple(sizes),
        tuple(_each([step.step_s for step in pair("back", size)]) for size in sizes) if directions else (),
    )


def never_less(numbers: Sequence[float]) -> list[float]:
    """Returns the nearest numbers that do not decrease, in the sense of least squares.

    Neighbours that decrease become their mean. (Pool adjacent violators: Ayer et al., 1955.)
    """
    blocks: list[tuple[float, int]] = []  # means, and how many numbers each stands for
    for number in numbers:
        blocks.append((number, 1))
        while len(blocks) > 1 and blocks[-2][0] >= blocks[-1][0]:
            (one, n), (other, k) = blocks[-2:]
            blocks[-2:] = [((n * one + k * other) / (n + k), n + k)]
    return [mean for mean, count in blocks for _ in range(count)]


def _played(bench: Bench, cases: Sequence[_Case], kinds: int, shared_memory: bool) -> dict[_Case, StepTimes]:
    """Plays cases in turn, so many of each size, up to the size at which a step takes long."""

    def goes_on(found: Sequence[StepTimes]) -> bool:
        whole = len(found) % kinds == 0
        if len(found) < LEAST_SIZES * kinds:
            return True
        return not whole or max(times.step_s for times in found[-kinds:]) < MOST_STEP_S

    plans = [_plan(shape, layers, n // (4 * BATCH), 2) for n, shape, layers in cases]
    found = bench.play(plans, steps=STEPS, shared_memory=shared_memory, goes_on=goes_on)
    return dict(zip(cases, found, strict=False))


def _share(seconds: Sequence[tuple[float, ...]]) -> float:
    """The sender's share of the work of both communication threads in a fan, where it alone sends."""
    send, receive = (_each([each[m] for each in seconds]) for m in (0, 1))
    return send / (send + receive) if send + receive > 0 else 0.5


def _each(pair: Sequence[float]) -> float:
    """Seconds that one layer adds."""
    return max((pair[1] - pair[0]) / (MANY - FEW), 0.0)


def _beside_kernels(times: StepTimes) -> float:
    """Seconds of a chain's step outside its kernels, of which one runs at a time."""
    return times.step_s - sum(times.busy_s)


def _plan(shape: Shape, layers: int, rows: int, machines: int) -> Plan:
    """A chain over machines in turn; or layers side by side, each of which sends to the other machine."""
    net, cuts = Network(shape), {}
    given = states = net.input("x", shape=rows)
    for n in range(layers):
        owner = n % 2 if shape == "both" else int(shape == "back")
        if shape == "chain":
            states = Activation("relu", name=f"layer{n}")(states)
            cuts[f"layer{n}"] = Whole(n % machines)
            continue
        below = Activation("relu", name=f"below{n}")(given)
        Activation("relu", name=f"above{n}")(below)
        cuts |= {f"below{n}": Whole(owner), f"above{n}": Whole(1 - owner)}
    return partition(net.graph(), Cluster.local(machines), batch=BATCH, cuts=cuts, strategy="balanced")


def _rounded(seconds: float) -> float:
    return float(f"{seconds:.{_DIGITS}g}")
