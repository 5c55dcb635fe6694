"""From instructions to calls: each computation of a program as one function without arguments, made once.

This is where buffers, kernels and the feed meet. It must not know messages or drivers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

from partita.engine.kernels.kernel import (
    Array,
    Arrays,
    Call,
    Kernel,
    LossKernel,
    PartialKernel,
    PartialSums,
    Site,
    nothing,
)
from partita.engine.kernels.parallel import Team
from partita.engine.kernels.registry import build
from partita.engine.runtime.buffers import Buffers, Vectors
from partita.engine.runtime.learn import Learning, Scratch, Updates
from partita.engine.runtime.metrics import Metrics
from partita.engine.runtime.norms import factors_of, squares_of
from partita.engine.runtime.window import Window
from partita.layers.graph import Grid
from partita.layers.rows import bounds
from partita.partitioner.buffer_names import (
    DELTAS,
    GRADIENT,
    NORMS,
    PARAMETERS,
    SUMMARY,
    SUMS,
    holds_sums,
    layer_of,
)
from partita.partitioner.ownership import Edge
from partita.partitioner.plan import Plan
from partita.partitioner.program import COMPUTES, Instruction, Op, Operand, Program


class Feed(ABC):
    """Where inputs and targets come from: fills rows of one, node-major, for the step that is played."""

    @abstractmethod
    def fill(self, name: str, rows: tuple[int, int], out: Array) -> None:
        """Writes rows `[start, stop)` of the input or target for every example of the batch into `out`."""

    @property
    @abstractmethod
    def count(self) -> int:
        """How many examples of the batch are real; the rest is padding that counts for nothing."""


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
        updates: Updates | None = None,
    ) -> None:
        """Builds and compiles every kernel.

        Args:
            plan: what to play.
            machine: as whom.
            program: its part.
            buffers: states and errors.
            vectors: parameters and gradients.
            feed: fills inputs and targets.
            updates: what a driver does with gradients; None leaves them alone.
        """
        self.graph, self.owned, self.machine = plan.graph, plan.ownership, machine
        self.buffers, self.vectors, self.feed, self.plan = buffers, vectors, feed, plan
        self.metrics = Metrics()
        self.not_finite: set[str] = set()
        self._device = vectors.device
        self._updates, self._scratch = updates, Scratch(self._device)
        self._team = Team(plan.cluster.machines[machine].threads)
        self._kernels = {
            grid.name: self._kernel(grid, rows)
            for grid in self.graph.computed
            if (rows := self.owned.rows(grid.name, machine)) is not None
        }
        self._learnings = {
            name: Learning(
                self._kernels[name],
                self.owned.held(name, machine),
                start=vectors.span(name).start,
                by_blocks=self._device.blocks_fit_caches,
            )
            for instruction in program.instructions
            if instruction.op is Op.LEARN
            for name in [_layer(instruction.target)]
        }
        self.scratch_bytes = max((found.scratch_bytes for found in self._learnings.values()), default=0)
        self._scratch.reserve(self.scratch_bytes)
        self.calls: tuple[Call | None, ...] = tuple(
            self._call(instruction) if instruction.op in COMPUTES else None
            for instruction in program.instructions
        )

    def run(self, position: int) -> None:
        """Runs one computation; several threads may run different ones."""
        call = self.calls[position]
        assert call is not None, f"instruction {position} is not a computation"
        call()

    def finish(self) -> None:
        """Returns when all that was run is done: a GPU goes on when a call has returned."""
        self._device.finish()

    def close(self) -> None:
        """Ends the threads that kernels share."""
        self.finish()
        self._team.close()

    def _call(self, instruction: Instruction) -> Call:
        makers: dict[Op, Callable[[Instruction], Call]] = {
            Op.FEED: self._feed,
            Op.MULTIPLY: self._up,
            Op.UP: self._up,
            Op.DELTA: self._delta,
            Op.ERRORS: self._errors,
            Op.ADD: self._add,
            Op.SUMMARISE: self._summarise,
            Op.GRADIENT: self._gradient,
            Op.SQUARES: self._squares,
            Op.UPDATE: self._update,
            Op.LEARN: self._learn,
        }
        return makers[instruction.op](instruction)

    def _feed(self, instruction: Instruction) -> Call:
        name, rows = instruction.target.buffer, instruction.target.rows
        window = self.buffers[name]
        runs = list(zip(rows, window.arriving(rows), strict=True))

        def call() -> None:
            window.wait()
            for run, out in runs:
                self.feed.fill(name, run, out)
            window.upload(rows)

        return call

    def _up(self, instruction: Instruction) -> Call:
        name = layer_of(instruction.target.buffer)
        kernel = self._kernels[name]
        if holds_sums(instruction.target.buffer):
            assert isinstance(kernel, PartialKernel), f"{instruction} is of no layer cut by its inputs"
            return kernel.multiply(instruction.target.rows[0])
        by_blocks = self.graph[name].layer.splits_sum and not self.owned.by_inputs(name)
        block = instruction.sources[0].rows[0] if by_blocks else None
        call = kernel.up(block=block, first=not instruction.accumulate, last=instruction.op is Op.UP)
        if not isinstance(kernel, LossKernel):
            return call
        if self.machine not in self.owned.counted(name):
            return call
        judge = kernel
        self.metrics.expect(name)

        def call_and_judge() -> None:
            call()
            self.metrics.add(name, *judge.metrics(self.feed.count))

        return call_and_judge

    def _summarise(self, instruction: Instruction) -> Call:
        kernel = self._kernels[_layer(instruction.target)]
        assert isinstance(kernel, LossKernel), f"{instruction} is of no loss"
        return kernel.summarise(instruction.target.rows[0][0])

    def _delta(self, instruction: Instruction) -> Call:
        (operand,) = instruction.sources
        return self._kernels[operand.buffer].delta()

    def _errors(self, instruction: Instruction) -> Call:
        edge = self._edge(instruction.target.buffer)
        kernel = self._kernels[edge.consumer]
        return kernel.errors(edge.number, instruction.target.rows, accumulate=instruction.accumulate)

    def _add(self, instruction: Instruction) -> Call:
        (other,) = instruction.sources
        pairs = list(
            zip(
                self.buffers[instruction.target.buffer].of(instruction.target.rows),
                self.buffers[other.buffer].of(other.rows),
                strict=True,
            )
        )
        act = self._device.add if instruction.accumulate else self._device.copy

        def call() -> None:
            for target, source in pairs:
                act(target, source)

        return call

    def _gradient(self, instruction: Instruction) -> Call:
        name = _layer(instruction.target)
        kernel, whole = self._kernels[name], self._gradients(name)
        if kernel.gradient_dtype == kernel.site.master:
            return kernel.gradient(whole)
        narrow = [self._device.zeros(gradient.shape, kernel.gradient_dtype) for gradient in whole]
        call = kernel.gradient(narrow)

        def widened() -> None:
            call()
            for source, out in zip(narrow, whole, strict=True):
                self._device.copy(out, source)

        return widened

    def _gradients(self, name: str) -> list[Array]:
        """The whole gradient of the parameters that the machine's rows of a layer use."""
        found = self.buffers.parameters_in(name + GRADIENT)
        return self.vectors.views(name, self.vectors.gradient) if found is None else found

    def _squares(self, instruction: Instruction) -> Call:
        names = list(self.graph.parameters)
        learnt = []
        for source in instruction.sources:
            layer = _layer(source)
            values = self.vectors.views(layer, self.vectors.parameters)
            for parameter, *arrays in zip(
                self.graph[layer].parameters, values, self._gradients(layer), strict=True
            ):
                learnt.append((names.index(parameter.name), [array.reshape(-1) for array in arrays]))
        (place,) = self.buffers[NORMS].of(instruction.target.rows)
        return squares_of(learnt, place.reshape(-1, 2), self._device.sum_of_squares)

    def _update(self, instruction: Instruction) -> Call:
        name, updates = _layer(instruction.target), self._updates
        if updates is None:
            return nothing
        applies = [
            (parameter.name, updates.bind(span, gradient.reshape(-1)))
            for parameter, span, gradient in zip(
                self.graph[name].parameters, self.vectors.spans(name), self._gradients(name), strict=True
            )
        ]
        factors: Callable[[], Mapping[str, float]] = dict
        if any(source.buffer == NORMS for source in instruction.sources):
            told = self.buffers[NORMS].array
            factors = factors_of(list(self.graph.parameters), told.reshape(len(told), -1, 2), updates)

        def call() -> None:
            found = factors()
            for parameter, apply in applies:
                if not apply(found.get(parameter, 1.0)):
                    self.not_finite.add(name)

        return call

    def _learn(self, instruction: Instruction) -> Call:
        name, updates = _layer(instruction.target), self._updates
        assert updates is not None, f"{instruction} needs to know what to do with gradients"
        return self._learnings[name].call(self._scratch, updates, lambda: self.not_finite.add(name))

    def _edge(self, buffer: str) -> Edge:
        layer = buffer.partition("<")[0]
        return next(edge for edge in self.owned.edges(layer) if edge.name == buffer)

    def _kernel(self, grid: Grid, rows: tuple[int, int]) -> Kernel:
        """A layer's kernel, bound to the arrays that every call of it takes."""
        sources = [self._heard(source, grid) for source in grid.sources]
        edges = [Edge(source, grid.name, k) for k, source in enumerate(grid.sources)]
        returned = [self.buffers.windows.get(edge.name) for edge in edges]
        own = next((self.buffers.windows.get(edge.name) for edge in self.owned.edges(grid.name)), None)
        site = Site(
            grid,
            rows,
            tuple(self.graph[source] for source in grid.sources),
            tuple(window.rows for window in sources),
            tuple((0, 0) if window is None else window.rows for window in returned),
            self.plan.batch,
            self.plan.precision,
            self.plan.cluster.machines[self.machine].threads,
            self.plan.cluster.machines[self.machine].device,
            self.owned.inputs(grid.name, self.machine),
        )
        borrowed = self.buffers.parameters_in(grid.name + PARAMETERS)
        told = self.buffers.windows.get(grid.name + SUMMARY)
        arrays = Arrays(
            sources=tuple(window.array for window in sources),
            state=self.buffers[grid.name].of((rows,))[0],
            delta=None if own is None else own.of((rows,))[0],
            errors=tuple(None if window is None else window.array for window in returned),
            parameters=tuple(borrowed or self.vectors.views(grid.name, self.vectors.read)),
            summaries=None if told is None else told.array,
            partial=None if site.inputs is None else self._partial_sums(grid, rows),
        )
        return build(site, arrays, self._team)

    def _heard(self, source: str, grid: Grid) -> Window:
        """What a layer hears of an input: all that is here; but a judge its own scores, and no others."""
        window, own = self.buffers[source], self.owned.home(source, self.machine)
        if not own or not self.owned.judges(grid.name):
            return window
        return Window(own[0][0], window.of(own)[0])

    def _partial_sums(self, grid: Grid, rows: tuple[int, int]) -> PartialSums:
        """The sums of all machines for these rows, in the order of the machines; and errors of all rows."""
        own, windows = grid.name + SUMS, self.buffers.windows
        terms = []
        for machine in sorted(piece.machine for piece in self.owned.of(grid.name)):
            window = windows[own if machine == self.machine else f"{own}@{machine}"]
            terms.append(window.of((rows,))[0])
        deltas = windows.get(grid.name + DELTAS)
        biased = bounds(self.owned.home(grid.name, self.machine))
        return PartialSums(windows[own].array, tuple(terms), None if deltas is None else deltas.array, biased)


def _layer(operand: Operand) -> str:
    """Whose parameters or gradient an operand names."""
    return operand.buffer.rpartition(".")[0]
