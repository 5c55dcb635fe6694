"""Measures what the runtime adds to kernels: for an instruction, for a message, for a step.

Networks of layers that compute next to nothing are played over real hosts. In a *chain* each layer waits for
the one before it, on the other machine; in a *fan* one machine sends as many messages as there are layers,
which separates the work of a sender from that of a receiver. The time of a step beyond its kernels grows with
the number of layers; the slope is the cost of one instruction or message.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from partita.engine.profile.bench import Bench, StepTimes
from partita.layers import Activation, Network
from partita.partitioner import Cluster, Link, Plan, Whole, partition

BATCH: Final = 128
ROWS: Final = (1, 128, 2048)
"""Rows of a message: half a KiB, 64 KiB and a MiB of float32."""
FEW: Final = 2
MANY: Final = 10
"""Numbers of layers of the two networks that are compared."""
STEPS: Final = 1000
BOTH_WAYS: Final = 0.7
"""Fraction of the rate that must be left to each direction for a link to count as full duplex."""
_FASTEST: Final = 1e12
"""Bytes a second where a transfer takes no measurable time."""

Shape = Literal["chain", "fan", "both"]


@dataclass(frozen=True)
class LinkMeasurement:
    """Seconds that messages between two hosts take, for each size in `ROWS`.

    Args:
        start_s: a step of several machines, without the work in it; some machines begin later than others.
        total_s: from when a message may be sent until it may be used.
        send_s, receive_s: work of the sender's and of the receiver's communication thread.
        stream_s: for each of many messages, in one direction.
        both_s: for each of many messages of the largest size, in both directions at once.
    """

    start_s: float
    total_s: tuple[float, ...]
    send_s: tuple[float, ...]
    receive_s: tuple[float, ...]
    stream_s: tuple[float, ...]
    both_s: float

    @property
    def link(self) -> Link:
        """The link with these costs, as straight lines over the bytes."""
        n_bytes = [4 * BATCH * rows for rows in ROWS]
        send, receive, total = (_line(n_bytes, s) for s in (self.send_s, self.receive_s, self.total_s))
        wire = max(total[1] - send[1] - receive[1], 0.0)
        return Link(
            latency_s=max(total[0] - send[0] - receive[0], 0.0),
            bytes_per_s=_rate(wire),
            both_ways=self.stream_s[-1] >= BOTH_WAYS * self.both_s,
            send_s=send[0],
            receive_s=receive[0],
            send_bytes_per_s=_rate(send[1]),
            receive_bytes_per_s=_rate(receive[1]),
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


def measure_link(bench: Bench, runtime: Runtime, *, shared_memory: bool) -> LinkMeasurement:
    """Measures messages between two machines."""
    shapes: tuple[Shape, ...] = ("chain", "fan")
    cases = [(shape, n, rows) for rows in ROWS for shape in shapes for n in (FEW, MANY)]
    cases += [("both", n, ROWS[-1]) for n in (FEW, MANY)]
    all_times = bench.play([_plan(*case, 2) for case in cases], steps=STEPS, shared_memory=shared_memory)
    found = dict(zip(cases, all_times, strict=True))

    def pair(shape: Shape, rows: int) -> tuple[StepTimes, StepTimes]:
        return found[shape, FEW, rows], found[shape, MANY, rows]

    chains, fans = [pair("chain", rows) for rows in ROWS], [pair("fan", rows) for rows in ROWS]
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
        _each([times.step_s for times in pair("both", ROWS[-1])]),
    )


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
        owner = n % 2 if shape == "both" else 0
        if shape == "chain":
            states = Activation("relu", name=f"layer{n}")(states)
            cuts[f"layer{n}"] = Whole(n % machines)
            continue
        below = Activation("relu", name=f"below{n}")(given)
        Activation("relu", name=f"above{n}")(below)
        cuts |= {f"below{n}": Whole(owner), f"above{n}": Whole(1 - owner)}
    return partition(net.graph(), Cluster.local(machines), batch=BATCH, cuts=cuts, strategy="balanced")


def _line(n_bytes: Sequence[int], seconds: Sequence[float]) -> tuple[float, float]:
    """Fits a straight line by the relative error: seconds at no bytes and for each byte, not below 0."""
    weights = 1.0 / np.maximum(np.array(seconds), 1e-7)
    columns = np.stack([np.ones(len(n_bytes)), np.array(n_bytes, np.float64)], axis=1)
    (start, each), *_ = np.linalg.lstsq(columns * weights[:, None], np.array(seconds) * weights, rcond=None)
    return max(float(start), 0.0), max(float(each), 0.0)


def _rate(seconds_per_byte: float) -> float:
    return min(1.0 / seconds_per_byte, _FASTEST) if seconds_per_byte > 0 else _FASTEST
