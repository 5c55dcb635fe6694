"""From instructions to calls: each computation of a program as one function without arguments, made once.

This is where buffers, kernels and the feed meet. It must not know messages or drivers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from partita.engine.kernels.kernel import Array, Kernel, LossKernel, Site
from partita.engine.kernels.parallel import Team
from partita.engine.kernels.registry import build
from partita.engine.runtime.buffers import Buffers, Vectors
from partita.layers.graph import Grid
from partita.partitioner.ownership import Edge
from partita.partitioner.plan import Plan
from partita.partitioner.program import COMPUTES, Instruction, Op, Program

Call: TypeAlias = Callable[[], None]


class Feed(ABC):
    """Where inputs and targets come from: fills rows of one, node-major, for the step that is played."""

    @abstractmethod
    def fill(self, name: str, rows: tuple[int, int], out: Array) -> None:
        """Writes rows `[start, stop)` of the input or target for every example of the batch into `out`."""

    @property
    @abstractmethod
    def count(self) -> int:
        """How many examples of the batch are real; the rest is padding that counts for nothing."""


class Metrics:
    """Sums over examples: what each loss of this machine came to. One thread at a time adds to a loss."""

    def __init__(self) -> None:
        self._losses: dict[str, float] = {}
        self._correct: dict[str, int] = {}

    def expect(self, name: str) -> None:
        """There is a loss of this name."""
        self._losses[name], self._correct[name] = 0.0, 0

    def add(self, name: str, loss: float, correct: int) -> None:
        """What a loss came to in a step."""
        self._losses[name] += loss
        self._correct[name] += correct

    def clear(self) -> None:
        """Starts from zero."""
        for name in self._losses:
            self.expect(name)

    @property
    def loss(self) -> float:
        """Of all losses, in the order of the program."""
        return sum(self._losses.values())

    @property
    def correct(self) -> int:
        """Of all losses."""
        return sum(self._correct.values())


class Computations:
    """The computations of one program on one machine."""

    def __init__(
        self,
        plan: Plan,
        machine: int,
        program: Program,
        *,
        buffers: Buffers,
        vectors: Vectors,
        feed: Feed,
        update: Callable[[str], None] | None = None,
    ) -> None:
        """Builds and compiles every kernel.

        Args:
            plan: what to play.
            machine: as whom.
            program: its part.
            buffers: states and errors.
            vectors: parameters and gradients.
            feed: fills inputs and targets.
            update: what a driver does with a layer's gradient, by the layer's name; None: nothing.
        """
        self.graph, self.owned, self.machine = plan.graph, plan.ownership, machine
        self.buffers, self.vectors, self.feed, self.plan = buffers, vectors, feed, plan
        self.metrics = Metrics()
        self._update = update
        self._team = Team(plan.cluster.machines[machine].threads)
        self._kernels: dict[str, Kernel] = {}
        self.calls: tuple[Call | None, ...] = tuple(
            self._call(instruction) if instruction.op in COMPUTES else None
            for instruction in program.instructions
        )

    def run(self, position: int) -> None:
        """Runs one computation; several threads may run different ones."""
        call = self.calls[position]
        assert call is not None, f"instruction {position} is not a computation"
        call()

    def close(self) -> None:
        """Ends the threads that kernels share."""
        self._team.close()

    def _call(self, instruction: Instruction) -> Call:
        makers: dict[Op, Callable[[Instruction], Call]] = {
            Op.FEED: self._feed,
            Op.MULTIPLY: self._up,
            Op.UP: self._up,
            Op.DELTA: self._delta,
            Op.ERRORS: self._errors,
            Op.ADD: self._add,
            Op.GRADIENT: self._gradient,
            Op.UPDATE: self._apply,
        }
        return makers[instruction.op](instruction)

    def _feed(self, instruction: Instruction) -> Call:
        name, rows = instruction.target.buffer, instruction.target.rows
        runs = list(zip(rows, self.buffers[name].of(rows), strict=True))

        def call() -> None:
            for run, out in runs:
                self.feed.fill(name, run, out)

        return call

    def _up(self, instruction: Instruction) -> Call:
        name = instruction.target.buffer
        kernel, sources, state, parameters = self._site(name)
        block = instruction.sources[0].rows[0] if self.graph[name].layer.splits_sum else None
        first, last = not instruction.accumulate, instruction.op is Op.UP

        def call() -> None:
            kernel.up(sources, state, parameters, block=block, first=first, last=last)

        if not isinstance(kernel, LossKernel):
            return call
        judge = kernel
        self.metrics.expect(name)

        def call_and_judge() -> None:
            call()
            self.metrics.add(name, *judge.metrics(sources, state, self.feed.count))

        return call_and_judge

    def _delta(self, instruction: Instruction) -> Call:
        (operand,) = instruction.sources
        kernel, _, state, _ = self._site(operand.buffer)
        (error,) = self.buffers[instruction.target.buffer].of(instruction.target.rows)
        return lambda: kernel.delta(state, error)

    def _errors(self, instruction: Instruction) -> Call:
        edge = self._edge(instruction.target.buffer)
        kernel, sources, state, parameters = self._site(edge.consumer)
        own = instruction.sources[0]
        (delta,) = self.buffers[own.buffer].of(own.rows)
        out = self.buffers[edge.name].array
        rows, accumulate = instruction.target.rows, instruction.accumulate
        return lambda: kernel.errors(
            edge.number,
            rows,
            out,
            sources=sources,
            state=state,
            delta=delta,
            parameters=parameters,
            accumulate=accumulate,
        )

    def _add(self, instruction: Instruction) -> Call:
        (other,) = instruction.sources
        pairs = list(
            zip(
                self.buffers[instruction.target.buffer].of(instruction.target.rows),
                self.buffers[other.buffer].of(other.rows),
                strict=True,
            )
        )

        def add() -> None:
            for target, source in pairs:
                np.add(target, source, out=target)

        def replace() -> None:
            for target, source in pairs:
                np.copyto(target, source)

        return add if instruction.accumulate else replace

    def _gradient(self, instruction: Instruction) -> Call:
        name = instruction.target.buffer.removesuffix(".gradient")
        kernel, sources, state, parameters = self._site(name)
        (error,) = instruction.sources
        (delta,) = self.buffers[error.buffer].of(error.rows)
        gradients = self.vectors.views(name, self.vectors.gradient)
        return lambda: kernel.gradient(sources, state, delta, parameters, gradients)

    def _apply(self, instruction: Instruction) -> Call:
        name = instruction.target.buffer.removesuffix(".parameters")
        update = self._update
        return (lambda: None) if update is None else lambda: update(name)

    def _edge(self, buffer: str) -> Edge:
        layer = buffer.partition("<")[0]
        return next(edge for edge in self.owned.edges(layer) if edge.name == buffer)

    def _site(self, name: str) -> tuple[Kernel, list[Array], Array, list[Array]]:
        """A layer's kernel with the arrays that every call of it takes."""
        grid, rows = self.graph[name], self.owned.rows(name, self.machine)
        assert rows is not None, f"machine {self.machine} owns nothing of {name}"
        windows = [self.buffers[source] for source in grid.sources]
        if name not in self._kernels:
            self._kernels[name] = build(self._place(grid, rows), self._team)
        (state,) = self.buffers[name].of((rows,))
        parameters = self.vectors.views(name, self.vectors.parameters)
        return self._kernels[name], [window.array for window in windows], state, parameters

    def _place(self, grid: Grid, rows: tuple[int, int]) -> Site:
        edges = [Edge(source, grid.name, k) for k, source in enumerate(grid.sources)]
        return Site(
            grid,
            rows,
            tuple(self.graph[source] for source in grid.sources),
            tuple(self.buffers[source].rows for source in grid.sources),
            tuple(
                self.buffers[edge.name].rows if edge.name in self.buffers.windows else (0, 0)
                for edge in edges
            ),
            self.plan.batch,
            np.dtype(self.plan.precision),
            self.plan.cluster.machines[self.machine].threads,
        )
