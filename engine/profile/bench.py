"""Makes measurements on hosts that are processes of this machine, in which a step is played as in a run.

A test gives calibration another bench.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import psutil

from partita.engine.kernels.kernel import Array
from partita.engine.launch.launcher import Launcher
from partita.engine.launch.placement import Placement
from partita.engine.launch.processes import ProcessLauncher
from partita.engine.profile.kernel_benchmark import QUANTILE, BenchmarkPart, KernelBenchmarkTask, Seconds
from partita.engine.profile.products import ProductMeasurement, busy, measure_product
from partita.engine.profile.step_timing import STEPS_OF_PLAN, StepTimingTask
from partita.engine.profile.threads import measure_shares
from partita.engine.profile.tiles import TileMeasurement, measure_tiles
from partita.engine.protocol.names import part_name
from partita.engine.protocol.session_messages import Play
from partita.engine.run.hosted_backend import HostedBackend
from partita.engine.run.phases import OnPhase, silent
from partita.engine.runtime.session import PartStep, SessionTask
from partita.engine.transport.payload import Payload
from partita.partitioner.cluster.products import Choice, Products, ProductShape
from partita.partitioner.cluster.threads import ThreadShares
from partita.partitioner.cluster.tile_forms import TiledLoop
from partita.partitioner.plan import Plan

TIMEOUT_S: Final = 600.0
_WARM_UP: Final = 5
_LEAST: Final = 8
_LONGEST_S: Final = 0.4
"""Seconds after which a slow plan has had enough steps, but never fewer than `_LEAST`."""


@dataclass(frozen=True)
class StepTimes:
    """Seconds of an undisturbed step: a low quantile of many.

    Args:
        step_s: of the slowest machine.
        busy_s: in kernels, of each machine.
        communication_s: processor time outside kernels, of each machine's process.
    """

    step_s: float
    busy_s: tuple[float, ...]
    communication_s: tuple[float, ...]


Launch: TypeAlias = Callable[[int, bool], Launcher]
"""Opens a launcher for so many parts of a replica, which share memory or not."""


def on_processes(hosts: int, shared_memory: bool) -> Launcher:
    """Opens a launcher of processes of this machine."""
    names = [] if shared_memory else [part_name(0, machine) for machine in range(hosts)]
    return ProcessLauncher(places={name: Placement(machine=name) for name in names})


class Bench:
    """Makes measurements on real hosts."""

    def __init__(self, launch: Launch = on_processes, *, on_phase: OnPhase = silent) -> None:
        """No host runs yet.

        Args:
            launch: opens the launchers of hosts.
            on_phase: called with the phases of hosts that start and compile.
        """
        self._launch, self._on_phase = launch, on_phase

    def time_kernels(
        self, parts: Sequence[Sequence[BenchmarkPart]], *, threads: int, on_group: Callable[[int], object]
    ) -> list[list[Seconds]]:
        """Times the kernels of groups of parts, the parts of a group side by side.

        Args:
            parts: the groups, all of the same size.
            threads: kernel threads of each part.
            on_group: called with the index of each group when it begins.

        Returns:
            For each group and part, the seconds of each instruction.
        """
        tasks = [
            KernelBenchmarkTask(n, tuple(group[n] for group in parts), threads) for n in range(len(parts[0]))
        ]
        found = []
        with closing(
            HostedBackend(tasks, self._launch(len(tasks), True), timeout_s=TIMEOUT_S, on_phase=self._on_phase)
        ) as backend:
            for n in range(len(parts)):
                on_group(n)
                backend.play(Play(2 * n, 0), None)
                found.append([_seconds(part) for part in backend.play(Play(2 * n + 1, 0), None)])
        return found

    def play(
        self,
        plans: Sequence[Plan],
        *,
        steps: int,
        shared_memory: bool,
        cold: bool = False,
        goes_on: Callable[[Sequence[StepTimes]], bool] = lambda found: True,
    ) -> list[StepTimes]:
        """Plays steps of plans, each over the same number of hosts.

        Args:
            plans: plans whose forward pass is played, one after another.
            steps: steps of each plan, at most.
            shared_memory: whether hosts share memory; else they use TCP over loopback.
            cold: whether after each kernel the caches hold nothing of the runtime.
            goes_on: decides after each plan, by the times so far, whether the next one is played.

        Returns:
            The times of the plans that were played.
        """
        machines = range(len(plans[0].cluster))
        launcher = self._launch(len(machines), shared_memory)
        tasks = [StepTimingTask(machine, tuple(plans), cold) for machine in machines]
        found: list[StepTimes] = []
        with closing(HostedBackend(tasks, launcher, timeout_s=TIMEOUT_S, on_phase=self._on_phase)) as backend:
            for number, plan in enumerate(plans):
                backend.load(lambda machine, out: np.zeros(1, np.float32))
                inputs = [_inputs(task.session(number)) for task in tasks]
                first = number * STEPS_OF_PLAN
                found.append(
                    _typical_times(
                        _played(backend, inputs, plan.batch, range(first, first + _WARM_UP + steps))
                    )
                )
                if not goes_on(found):
                    break
        return found

    def busy(self) -> str | None:
        """Why products cannot be measured now, in a sentence; None on a quiet machine."""
        return busy()

    def multiply(self, shape: ProductShape, usual: Choice) -> ProductMeasurement | None:
        """Measures a product of matrices, see `measure_product`."""
        return measure_product(shape, usual)

    def tiles(self, loop: TiledLoop) -> TileMeasurement | None:
        """Measures an operation of a layer on patches, see `measure_tiles`."""
        return measure_tiles(loop)

    def shares(self, rule: Products, threads: int, source: str) -> ThreadShares | None:
        """Measures the least work of each thread, see `measure_shares`."""
        return measure_shares(rule.threads, rule.rule, threads=threads, source=source)

    @property
    def cores(self) -> int:
        """Cores that this process may use."""
        return len(os.sched_getaffinity(0))

    @property
    def memory_bytes(self) -> int:
        """Memory of this machine."""
        return int(psutil.virtual_memory().total)


def _inputs(task: SessionTask) -> list[Array]:
    """Zeros in the shapes of a part's inputs."""
    shapes = (
        (*box.shape, *task.plan.graph[operand.buffer.layer].shape[len(box) :], task.plan.batch)
        for operand in task.inputs
        for box in operand.rows
    )
    return [np.zeros(shape, np.float32) for shape in shapes]


def _played(
    backend: HostedBackend, inputs: list[list[Array]], batch: int, steps: range
) -> list[Sequence[PartStep]]:
    """Plays warm-up steps, then the others or as many as there is time for; returns these."""
    found: list[Sequence[PartStep]] = []
    until = math.inf
    for step in steps:
        if len(found) == _WARM_UP:
            until = time.monotonic() + _LONGEST_S
        if len(found) >= _WARM_UP + _LEAST and time.monotonic() > until:
            break
        found.append(backend.play(Play(step, batch), None if found else inputs))
    return found[_WARM_UP:]


def _typical_times(played: Sequence[Sequence[PartStep]]) -> StepTimes:
    def typical(figure: Callable[[PartStep], float]) -> tuple[float, ...]:
        figures = [[figure(part) for part in parts] for parts in played]
        return tuple(map(float, np.quantile(figures, QUANTILE, axis=0)))

    return StepTimes(
        float(np.quantile([max(part.played.step_s for part in parts) for parts in played], QUANTILE)),
        typical(lambda part: part.played.busy_s),
        typical(lambda part: max(float(_seconds(part)[0]) - part.played.busy_s, 0.0)),
    )


def _seconds(part: PartStep) -> Seconds:
    """The numbers that a host sent with its answer."""
    assert isinstance(part.collected, Payload), "a host sent no measurements"
    return np.frombuffer(part.collected.to_bytes(), np.float64)
