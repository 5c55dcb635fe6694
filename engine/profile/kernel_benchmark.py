"""Rehearsing a part: a machine's computations in the order of its program, alone, each of them timed.

A kernel on its own, called again and again, finds its weights in the caches; in a step it finds there what
the computations before it have left. So it is timed where it stands, in the whole part with all of its
arrays, round after round. What would come in messages is numbers drawn at random.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from partita.engine.kernels.kernel import Array
from partita.engine.numerics import master, stored
from partita.engine.parameters.initialise import initial_vector
from partita.engine.parameters.optimizers import SGD
from partita.engine.protocol.events import Received
from partita.engine.protocol.messages import Heartbeat, Play, Played
from partita.engine.protocol.names import COORDINATOR
from partita.engine.runtime.buffers import Buffers, Vectors, layout_of
from partita.engine.runtime.compute import Computations
from partita.engine.runtime.feed import DatasetFeed, Sampler
from partita.engine.runtime.task import HostContext, Role
from partita.engine.runtime.updates import LocalOptimizer
from partita.layers.layer import Placeholder
from partita.partitioner.ir.buffer import activations
from partita.partitioner.ir.step_kind import StepKind
from partita.partitioner.plan import Plan

Clock = Callable[[], float]
Seconds = npt.NDArray[np.float64]

LEAST_ROUNDS: Final = 3
MOST_ROUNDS: Final = 400
ROUNDS_S: Final = 1.5
"""For how long a part is rehearsed."""
QUANTILE: Final = 0.1
"""Of the rounds: others who use the machine make some of them longer, and none shorter."""
DATA_BATCHES: Final = 4
"""From how many minibatches of data a step takes its own."""
_AMPLITUDE: Final = 0.1
"""Of numbers that stand for states and errors of other machines."""


@dataclass(frozen=True)
class BenchmarkPart:
    """A part to rehearse: a machine of a plan, and a kind of step."""

    plan: Plan
    machine: int
    kind: StepKind = StepKind()  # noqa: RUF009 - frozen

    @property
    def threads(self) -> int:
        """Of the machine."""
        return self.plan.cluster.machines[self.machine].threads


class KernelBenchmark:
    """A part with everything that its computations need in place, but nobody to talk to."""

    def __init__(self, part: BenchmarkPart, *, clock: Clock = time.perf_counter) -> None:
        """Allocates, compiles, and draws parameters, data and what others would send."""
        plan, machine = part.plan, part.machine
        program = plan.programs_for(part.kind)[machine]
        draw = np.random.default_rng(0)
        self._clock = clock
        vectors = Vectors(plan, machine, gradient=program.kind.gradients == "whole")
        slots, specs = layout_of(plan, shards=1).machines[machine], plan.graph.parameters
        initial_vector(slots, specs, 0, dtype=master(plan.precision), out=vectors.arriving())
        vectors.changed()
        keep = plan.kept if program.kind.train else None
        buffers = Buffers(plan, machine, program, vectors, keep=keep)
        self._data = _data(plan, draw)
        self._feed = DatasetFeed(
            self._data,
            Sampler(examples=DATA_BATCHES * plan.batch, batch=plan.batch, seed=0, replica=0, replicas=1),
        )
        self._updates = LocalOptimizer(SGD(1e-9), vectors)
        self._computations = Computations(
            plan,
            machine,
            program,
            buffers=buffers,
            vectors=vectors,
            feed=self._feed,
            updates=self._updates,
        )
        given = {activations(grid.name) for grid in (*plan.graph.inputs, *plan.graph.targets)}
        for buffer, window in buffers.windows.items():
            if buffer.travels_along_edges and buffer not in given and window.array.dtype != np.int64:
                for run, target in zip([window.rows], window.arriving((window.rows,)), strict=True):
                    drawn = _AMPLITUDE * draw.standard_normal(target.shape, np.float32)
                    target[...] = stored(drawn, target.dtype)
                    window.upload((run,))
        self._step = 0
        self._waits = plan.cluster.machines[machine].device != "cpu"

    def round(self) -> list[float]:
        """Seconds of each instruction, by position; 0 of a message."""
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
        """As many rounds as there is time for."""
        found: list[list[float]] = []
        until = self._clock() + ROUNDS_S
        while len(found) < LEAST_ROUNDS or (self._clock() < until and len(found) < MOST_ROUNDS):
            found.append(self.round())
        return found

    def close(self) -> None:
        """Ends its threads."""
        self._computations.close()


def typical(rounds: Sequence[Sequence[float]]) -> Seconds:
    """Of each instruction, the time that it takes in a round that nobody disturbs.

    That is its mean over the quickest rounds, about the quantile of their lengths: what instructions take
    varies by itself too, and their quickest times together are quicker than any round.
    """
    found = np.array(rounds, np.float64)
    quickest = np.argsort(found.sum(axis=1))[: max(round(2 * QUANTILE * len(found)), 1)]
    return np.asarray(found[quickest].mean(axis=0), np.float64)


@dataclass(frozen=True)
class KernelBenchmarkTask:
    """A host on which parts are rehearsed.

    Args:
        machine: the number of the host.
        scenes: what it rehearses. Order 2n prepares scene n, order 2n + 1 plays it: so that several hosts
            play at the same time.
        threads: kernel threads.
    """

    machine: int
    parts: tuple[BenchmarkPart, ...]
    threads: int

    @property
    def rank(self) -> tuple[int, int]:
        """See `HostTask`. Of those side by side, none needs a core of its own: nobody sends messages."""
        return 0, 1

    @property
    def title(self) -> str:
        """What it is about."""
        return "a rehearsal"

    def role(self, link: HostContext) -> Role:
        """See `HostTask`."""
        return _KernelBenchmarkRole(self, link)


class _KernelBenchmarkRole(Role):
    def __init__(self, task: KernelBenchmarkTask, link: HostContext) -> None:
        self._task, self._link = task, link
        self._benchmark: KernelBenchmark | None = None

    def receive(self, event: Received, now: float) -> None:
        """Prepares or plays what is asked for."""
        match event.message:
            case Play(step=step) if event.sender == COORDINATOR:
                self._play(step)
            case Heartbeat():
                return
            case other:
                raise ValueError(f"'{event.sender}' sent a {type(other).__name__} to a rehearsal")

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
        """Ends what is being rehearsed."""
        if self._benchmark is not None:
            self._benchmark.close()
            self._benchmark = None


def _data(plan: Plan, draw: np.random.Generator) -> dict[str, Array]:
    """Examples of every input and target, batch first."""
    examples = DATA_BATCHES * plan.batch
    found: dict[str, Array] = {}
    for grid in (*plan.graph.inputs, *plan.graph.targets):
        assert isinstance(grid.layer, Placeholder)
        if grid.layer.classes is not None:
            found[grid.name] = draw.integers(0, grid.layer.classes, examples)
        else:
            found[grid.name] = draw.standard_normal((examples, *grid.shape), np.float32)
    return found
