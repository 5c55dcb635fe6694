"""Plays a plan on processes of this machine, and measures the seconds of its steps, and traces of some."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import astuple, dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from partita.engine.launch.on import On
from partita.engine.numerics import master
from partita.engine.parameters.optimizers import SGD
from partita.engine.profile.kernel_benchmark import QUANTILE, draw_examples
from partita.engine.run.data import Data
from partita.engine.run.minibatches import minibatches_of
from partita.engine.run.phases import OnPhase, silent
from partita.engine.run.session import Hosts, Session
from partita.engine.runtime.trace import StepTrace
from partita.layers.graph import Graph
from partita.partitioner.plan import Plan
from partita.partitioner.predict.timeline import Timeline, Times

Array = npt.NDArray[Any]

WARM_UP: Final = 3
"""Steps that are not counted: kernels are compiled, memory is touched, queues are connected."""
RATE: Final = 1e-4
"""Learning rate of SGD, so small that numbers stay finite whatever the data are."""
SEED: Final = 0


@dataclass(frozen=True)
class Measured:
    """Measurements of a plan.

    Args:
        plan: the plan that was played.
        steps_s: seconds of each step, of its slowest part; without the traced steps.
        traces: traces of as many steps, each played after one of the others.
        sent_bytes, sent_messages: sent by each machine in a step.
    """

    plan: Plan
    steps_s: tuple[float, ...]
    traces: tuple[StepTrace, ...]
    sent_bytes: tuple[int, ...]
    sent_messages: tuple[int, ...]

    @property
    def step_s(self) -> float:
        """Seconds of an undisturbed step: a tenth of the steps were as quick, as in calibrations."""
        return float(np.quantile(self.steps_s, QUANTILE))

    @property
    def spread(self) -> float:
        """Relative difference between the median step and `step_s`."""
        return statistics.median(self.steps_s) / self.step_s - 1.0

    @cached_property
    def timelines(self) -> tuple[Timeline, ...]:
        """The timeline of each trace."""
        return tuple(trace.timeline for trace in self.traces)

    @cached_property
    def typical(self) -> Timeline:
        """The timeline of the traced step whose length is nearest to `step_s`."""
        return self._nearest[0]

    @cached_property
    def times(self) -> tuple[Times, ...]:
        """Where each machine's step goes: means over the quarter of the traced steps nearest to the typical
        one.
        """
        chosen = self._nearest[: (len(self._nearest) + 3) // 4]
        return tuple(_mean([timeline.times[m] for timeline in chosen]) for m in range(len(self.plan.cluster)))

    @cached_property
    def _nearest(self) -> list[Timeline]:
        return sorted(self.timelines, key=lambda timeline: abs(timeline.step_s - self.step_s))


def measure(
    plan: Plan,
    batch: Mapping[str, Array],
    *,
    steps: int,
    hosts: Hosts | On = "processes",
    on_step: Callable[[int], object] = lambda done: None,
    on_phase: OnPhase = silent,
) -> Measured:
    """Plays a plan: whole training steps, or the forward pass where the network has no loss.

    Args:
        plan: the plan to play.
        batch: an array for each input and target, `[batch, *shape]`; every step is fed the same.
        steps: steps to measure; as many are traced, in turn.
        hosts: "processes", "threads" of this process, which share one interpreter, or where else, as in
            `Session`.
        on_step: called with the number of steps that are done.
        on_phase: called with the phases of the hosts' start.

    Raises:
        ValueError: the batch does not fit the network.
        HostError: a host fails.
        RunFailed: there are no hosts to be had.
    """
    train = bool(plan.graph.losses)
    found, traces = [], []
    optimizer = SGD(RATE) if train else None
    with Session(plan, SEED, train=train, optimizer=optimizer, hosts=hosts, show=on_phase) as session:
        session.step(batch)
        for _ in range(WARM_UP - 1):
            session.step()
        for done in range(steps):
            found.append(session.step())
            trace = session.step(trace=True).trace
            assert trace is not None
            traces.append(trace)
            on_step(done + 1)
    sent = found[-1].sent
    return Measured(
        plan,
        tuple(step.step_s for step in found),
        tuple(traces),
        tuple(one.n_bytes for one in sent),
        tuple(one.messages for one in sent),
    )


def drawn_batch(graph: Graph, *, batch: int, precision: str) -> dict[str, Array]:
    """Draws what a step is fed: numbers between 0 and 1, and labels."""
    draw, dtype = np.random.default_rng(SEED), master(precision)
    return draw_examples(graph, batch, draw, lambda shape: draw.random(shape).astype(dtype))


def first_batch(plan: Plan, data: Data) -> tuple[dict[str, Array], float | None]:
    """Returns what a step is fed: the first examples of the data, the last one repeated if they are too few.

    Args:
        plan: of the network.
        data: of any kind.

    Returns:
        Arrays by input and target; and the examples that are read in a second, None where all are there.

    Raises:
        ValueError: the data does not fit the network.
    """
    with minibatches_of(plan, data, targets=bool(plan.graph.losses)) as found:
        return found.batch(0), found.reading_rate()


def reading_remark(rate: float | None, measured: Iterable[Measured]) -> tuple[str, ...]:
    """Words that data is read more slowly than the fastest measured plan takes it; else nothing."""
    rates = [one.plan.batch / one.step_s for one in measured]
    if rate is None or not rates or rate >= max(rates):
        return ()
    share = 1 - rate / max(rates)
    return (
        f"data: the reader gives {rate:,.0f} examples/s, and the network takes {max(rates):,.0f}: it would "
        f"wait {share:.0%} of the time; read with more workers: Loader(data, workers=...)",
    )


def _mean(times: list[Times]) -> Times:
    return Times(*(sum(column) / len(times) for column in zip(*map(astuple, times), strict=True)))
