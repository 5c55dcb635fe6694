"""Times the kernels of a part: a machine's computations in the order of its program, without messages.

A kernel on its own, called again and again, finds its weights in the caches; in a step it finds there what
the computations before it have left. So it is timed where it stands, in the whole part with all of its
arrays, round after round. Random numbers stand for received messages.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt

from partita.engine.kernels.kernel import Array
from partita.engine.numerics import master, stored
from partita.engine.parameters.initial_values import initial_vector
from partita.engine.parameters.optimizers import SGD
from partita.engine.protocol.events import Received
from partita.engine.protocol.host import PassOn, RoleMachine
from partita.engine.protocol.messages import Heartbeat
from partita.engine.protocol.names import COORDINATOR
from partita.engine.protocol.session_messages import Play, Played
from partita.engine.runtime.buffers import Buffers, Vectors, layout_of
from partita.engine.runtime.compute import Computations
from partita.engine.runtime.feed import DatasetFeed, Examples, Sampler
from partita.engine.runtime.local_optimizer import LocalOptimizer
from partita.engine.runtime.task import Body, HostContext
from partita.layers.box import Box, BoxSet
from partita.layers.graph import Graph
from partita.layers.layer import Placeholder
from partita.partitioner.ir.buffer import activations
from partita.partitioner.ir.step_kind import StepKind
from partita.partitioner.plan import Plan

Clock = Callable[[], float]
Seconds = npt.NDArray[np.float64]

LEAST_ROUNDS: Final = 3
MOST_ROUNDS: Final = 400
ROUNDS_S: Final = 1.5
"""Seconds for which a part is benchmarked."""
QUANTILE: Final = 0.1
"""Quantile of the rounds: other users of the machine make some rounds longer, and none shorter."""
DATA_BATCHES: Final = 4
"""Minibatches of data that steps cycle through."""
_AMPLITUDE: Final = 0.1
"""Scale of the random numbers that stand for activations and gradients of other machines."""


@dataclass(frozen=True)
class BenchmarkPart:
    """A part to benchmark: a machine of a plan, and a kind of step."""

    plan: Plan
    machine: int
    kind: StepKind = StepKind()  # noqa: RUF009 - frozen

    @property
    def threads(self) -> int:
        """Kernel threads of the machine."""
        return self.plan.cluster.machines[self.machine].threads


class KernelBenchmark:
    """A part with everything that its computations need, and without other hosts."""

    def __init__(self, part: BenchmarkPart, *, clock: Clock = time.perf_counter) -> None:
        """Allocates, compiles, and draws parameters, data and the messages of other machines."""
        plan, machine = part.plan, part.machine
        program = plan.programs_for(part.kind)[machine]
        draw = np.random.default_rng(0)
        self._clock = clock
        vectors = Vectors(plan, machine, gradient=program.kind.gradients == "whole")
        slots, specs = layout_of(plan, shards=1).machines[machine], plan.graph.parameters
        specs = {name: replace(spec, initialiser="normal") for name, spec in specs.items()}
        initial_vector(slots, specs, 0, dtype=master(plan.precision), out=vectors.arriving())
        vectors.changed()
        keep = plan.kept if program.kind.train else None
        buffers = Buffers(plan, machine, program, vectors, keep=keep)
        self._data = draw_examples(
            plan.graph, DATA_BATCHES * plan.batch, draw, lambda shape: draw.standard_normal(shape, np.float32)
        )
        self._feed = DatasetFeed(
            Examples(self._data),
            Sampler(examples=DATA_BATCHES * plan.batch, batch=plan.batch, seed=0),
        )
        self._updates = LocalOptimizer(SGD(1e-9), vectors)
        self._computations = Computations(buffers, self._feed, self._updates)
        given = {activations(grid.name) for grid in (*plan.graph.inputs, *plan.graph.targets)}
        for buffer, window in buffers.windows.items():
            if buffer.travels_along_edges and buffer not in given and window.array.dtype != np.int64:
                rows = BoxSet((Box((window.rows,)),))
                for target in window.arriving(rows):
                    drawn = _AMPLITUDE * draw.standard_normal(target.shape, np.float32)
                    target[...] = stored(drawn, target.dtype)
                    window.upload(rows)
        self._step = 0
        self._waits = plan.cluster.machines[machine].device != "cpu"

    def round(self) -> list[float]:
        """Returns the seconds of each instruction, by position; 0 for messages."""
        self._feed.choose(self._step)
        self._step += 1
        self._computations.metrics.clear()
        self._updates.advance()
        taken = []
        for call in self._computations.calls:
            if call is None:
                taken.append(0.0)
                continue
            began = self._clock()
            call()
            if self._waits:
                self._computations.finish()
            taken.append(self._clock() - began)
        return taken

    def rounds(self) -> list[list[float]]:
        """Plays rounds for `ROUNDS_S` and returns their seconds."""
        found: list[list[float]] = []
        until = self._clock() + ROUNDS_S
        while len(found) < LEAST_ROUNDS or (self._clock() < until and len(found) < MOST_ROUNDS):
            found.append(self.round())
        return found

    def close(self) -> None:
        """Ends the threads of the kernels."""
        self._computations.close()


def typical(rounds: Sequence[Sequence[float]]) -> Seconds:
    """Returns the seconds of each instruction in an undisturbed round.

    They are means over the quickest rounds, about the quantile of their lengths. The quickest times of each
    instruction by itself would add up to less than any round takes.
    """
    found = np.array(rounds, np.float64)
    quickest = np.argsort(found.sum(axis=1))[: max(round(2 * QUANTILE * len(found)), 1)]
    return np.asarray(found[quickest].mean(axis=0), np.float64)


@dataclass(frozen=True)
class KernelBenchmarkTask:
    """Task of a host that benchmarks parts.

    Args:
        machine: index of the host.
        parts: parts to benchmark. Step 2n prepares part n and step 2n + 1 plays it, so that several hosts
            play at the same time.
        threads: kernel threads.
    """

    machine: int
    parts: tuple[BenchmarkPart, ...]
    threads: int
    rank: ClassVar = (0, 1)  # parts that are timed side by side need no cores of their own: none communicates

    def role(self, link: HostContext) -> tuple[RoleMachine, Body]:
        """See the protocol `HostTask`."""
        return PassOn(), _KernelBenchmarkBody(self, link)


class _KernelBenchmarkBody(Body):
    def __init__(self, task: KernelBenchmarkTask, link: HostContext) -> None:
        self._task, self._link = task, link
        self._benchmark: KernelBenchmark | None = None

    def carry_out(self, effect: Received, now: float) -> None:
        """Prepares or plays a part."""
        match effect.message:
            case Play(step=step) if effect.sender == COORDINATOR:
                self._play(step)
            case Heartbeat():
                return
            case other:
                raise ValueError(f"'{effect.sender}' sent a {type(other).__name__} to a kernel benchmark")

    def _play(self, step: int) -> None:
        part, plays = divmod(step, 2)
        if not plays:
            self._benchmark = KernelBenchmark(self._task.parts[part])
            self._benchmark.round()
            self._answer(step, np.zeros(0))
            return
        assert self._benchmark is not None, f"scene {part} was not prepared"
        self._answer(step, typical(self._benchmark.rounds()))
        self.close()

    def _answer(self, step: int, seconds: Seconds) -> None:
        self._link.send(COORDINATOR, Played(step, 0.0, 0, 0.0, float(seconds.sum()), 0, 0), [seconds])

    def close(self) -> None:
        """Ends the benchmark that is open."""
        if self._benchmark is not None:
            self._benchmark.close()
            self._benchmark = None


def draw_examples(
    graph: Graph, count: int, draw: np.random.Generator, real: Callable[[tuple[int, ...]], Array]
) -> dict[str, Array]:
    """Draws examples for every input and target, batch first; `real` draws numbers in a shape."""
    found: dict[str, Array] = {}
    for grid in (*graph.inputs, *graph.targets):
        assert isinstance(grid.layer, Placeholder)
        classes, shape = grid.layer.classes, (count, *grid.shape)
        found[grid.name] = real(shape) if classes is None else draw.integers(0, classes, shape)
    return found
