"""From instructions to calls: each computation of a program as one function without arguments, made once.

This is where buffers, kernels and the feed meet. It must not know messages or drivers.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial

from partita.engine.kernels.calls import sequence
from partita.engine.kernels.kernel import (
    Array,
    Arrays,
    Call,
    Kernel,
    KernelContext,
    LossKernel,
    PartialKernel,
    PartialSums,
    no_op,
)
from partita.engine.kernels.registry import build
from partita.engine.kernels.thread_pool import ThreadPool
from partita.engine.runtime.buffers import Buffers
from partita.engine.runtime.feed import Feed
from partita.engine.runtime.fused_update import FusedUpdate, Scratch, Updates
from partita.engine.runtime.kernel_arrays import KernelArrays
from partita.engine.runtime.metrics import Metrics
from partita.engine.runtime.nonfinite import NonfiniteWatch
from partita.engine.runtime.norms import factors_of, squares_of
from partita.engine.runtime.task import NeverEnds
from partita.engine.runtime.watchdog import Overdue, Watchdog
from partita.layers.box import Box, BoxSet, Spans
from partita.partitioner.assign.parameter_slice import ParameterSlice
from partita.partitioner.ir.buffer import NORMS, Buffer, BufferKind, Edge, activations
from partita.partitioner.ir.program import COMPUTES, Instruction, Op, Operand


class Computations:
    """The computations of one program on one machine."""

    def __init__(self, buffers: Buffers, feed: Feed, updates: Updates | None = None) -> None:
        """Builds and compiles every kernel.

        Args:
            buffers: the arrays of the machine's program.
            feed: fills inputs and targets.
            updates: a driver's use of gradients; None leaves them alone.
        """
        plan, machine, program, vectors = buffers.plan, buffers.machine, buffers.program, buffers.vectors
        self.graph, self.owned, self.machine = plan.graph, plan.ownership, machine
        self.buffers, self.vectors, self.feed, self.plan = buffers, vectors, feed, plan
        self.metrics = Metrics()
        self.underway, self._instructions = Watchdog(), program.instructions
        self.watch = NonfiniteWatch(buffers)
        self.not_finite: set[str] = set()
        self._device = vectors.device
        self._updates, self._scratch = updates, Scratch(self._device)
        self._pool = ThreadPool(plan.cluster.machines[machine].threads)
        self._slots = program.slots
        numbers = [None] if program.pipeline.total == 1 else range(program.slots)
        self._views = {
            (grid.name, number): KernelArrays(self.owned, machine, buffers, grid, number)
            for grid in self.graph.computed
            if self.owned.rows(grid.name, machine)
            for number in numbers
        }
        self._kernels = {key: self._kernel(*key, views) for key, views in self._views.items()}
        self._made: dict[tuple[object, ...], Call] = {}
        self._learners: dict[tuple[str, tuple[Kernel, ...]], Callable[[int], None]] = {}
        self._updated: defaultdict[Buffer, int] = defaultdict(int)
        self._learnings = {
            (name, kernels): FusedUpdate(
                kernels,
                self._held(name),
                start=vectors.span(name).start,
                by_blocks=self._device.blocks_fit_caches,
            )
            for instruction in program.instructions
            if instruction.op is Op.FUSED_UPDATE
            for name, kernels in [self._learnt(instruction)]
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
        self.underway.begin(position)
        try:
            call()
        finally:
            self.underway.end()
        self.watch.done(position)

    def check_underway(self, now: float, limit_s: float) -> None:
        """Looks for a computation that does not end; to be called often, by one thread.

        Args:
            now: seconds, monotonic.
            limit_s: seconds that a computation may take.

        Raises:
            NeverEnds: one takes longer; it names instruction and layer.
        """
        try:
            self.underway.check(now, limit_s)
        except Overdue as stuck:
            instruction = self._instructions[stuck.position]
            buffer = instruction.target.buffer
            name = buffer.edge.consumer if buffer.edge and instruction.op is Op.GRAD_INPUT else buffer.layer
            raise NeverEnds(
                f"{instruction.op} {instruction.target}, a computation of {self.graph[name].layer.kind} "
                f"'{name}', has not ended for {stuck.after_s:.0f} s; look for a loop without an end in the "
                "layer's functions, or allow more by instruction_timeout_s (--instruction-timeout)",
                stuck.stack,
            ) from None

    def finish(self) -> None:
        """Returns when all that was run is done: a GPU goes on when a call has returned."""
        self._device.finish()

    def close(self) -> None:
        """Ends the threads that kernels share."""
        self.finish()
        self._pool.close()

    def _call(self, instruction: Instruction) -> Call:
        makers: dict[Op, Callable[[Instruction], Call]] = {
            Op.FEED: self._feed,
            Op.MULTIPLY: self._up,
            Op.FORWARD: self._up,
            Op.GRAD_PREACTIVATION: partial(self._once, self._delta),
            Op.GRAD_INPUT: self._down,
            Op.ADD: partial(self._once, self._add),
            Op.SUMMARISE: self._summarise,
            Op.GRADIENT: self._gradient,
            Op.SQUARES: self._squares,
            Op.UPDATE: self._update,
            Op.FUSED_UPDATE: self._learn,
        }
        return makers[instruction.op](instruction)

    def _once(self, make: Callable[[Instruction], Call], instruction: Instruction) -> Call:
        """The call of an instruction, made once for all portions that take turns in a place."""
        operands = (instruction.target, *instruction.sources)
        places = ((operand.buffer.place(self._slots), operand.rows) for operand in operands)
        key = (instruction.op, instruction.accumulate, *places)
        if key not in self._made:
            self._made[key] = make(instruction)
        return self._made[key]

    def _kernel_of(self, layer: str, buffer: Buffer) -> Kernel:
        """A layer's kernel for the portion of which a buffer is."""
        return self._kernels[layer, buffer.place(self._slots).micro_batch]

    def _views_of(self, layer: str, buffer: Buffer) -> KernelArrays:
        """The arrays of that kernel."""
        return self._views[layer, buffer.place(self._slots).micro_batch]

    def _feed(self, instruction: Instruction) -> Call:
        name, rows = instruction.target.buffer, instruction.target.rows
        window, layer, first = self.buffers[name], name.layer, self._first_example(name)
        runs = list(zip(rows, window.arriving(rows), strict=True))

        def call() -> None:
            window.wait()
            for run, out in runs:
                self.feed.fill(layer, run, out, first=first)
            window.upload(rows)

        return call

    def _first_example(self, buffer: Buffer) -> int:
        """With which of the step's examples a buffer begins."""
        return (buffer.micro_batch or 0) * self.plan.sizes.examples(buffer)

    def _real(self, first: int, examples: int) -> int:
        """How many of so many examples are real, of which the first is of this number in the step."""
        return min(max(self.feed.count - first, 0), examples)

    def _mean_over(self, first: int) -> int:
        """Of how many examples the gradient of a minibatch is the mean, in which example `first` lies."""
        batch = self.plan.batch
        return batch if self.feed.pads_portions else self._real(first // batch * batch, batch) or batch

    def _up(self, instruction: Instruction) -> Call:
        name = instruction.target.buffer.layer
        kernel, call = self._kernel_of(name, instruction.target.buffer), self._once(self._sum, instruction)
        if not isinstance(kernel, LossKernel):
            return call
        buffer, counts = instruction.target.buffer, self.machine in self.owned.loss_owners(name)
        judge, first, examples = kernel, self._first_example(buffer), kernel.context.batch
        if counts:
            self.metrics.expect(buffer)

        def call_and_judge() -> None:
            judge.mean_over = self._mean_over(first)
            call()
            if not counts:
                return
            loss, correct = judge.metrics(self._real(first, examples))
            self.metrics.add(buffer, loss, correct)
            if not math.isfinite(loss):
                self.watch.look()

        return call_and_judge

    def _sum(self, instruction: Instruction) -> Call:
        layer = instruction.target.buffer.layer
        kernel = self._kernel_of(layer, instruction.target.buffer)
        if instruction.target.buffer.kind is BufferKind.PARTIAL_SUMS:
            assert isinstance(kernel, PartialKernel), f"{instruction} is of no layer cut by its inputs"
            return kernel.multiply(_rows(instruction.target)[0])
        by_blocks = self.graph[layer].layer.splits_sum and not self.owned.is_input_split(layer)
        block = _rows(instruction.sources[0])[0] if by_blocks else None
        last, views = instruction.op is Op.FORWARD, self._views_of(layer, instruction.target.buffer)
        call = kernel.forward(block=block, first=not instruction.accumulate, last=last)
        return sequence(views.before_up, call, views.after_up if last else no_op)

    def _summarise(self, instruction: Instruction) -> Call:
        kernel = self._kernel_of(_layer(instruction.target), instruction.target.buffer)
        assert isinstance(kernel, LossKernel), f"{instruction} is of no loss"
        return kernel.summarise(instruction.target.rows.hull[0][0])

    def _delta(self, instruction: Instruction) -> Call:
        (operand,) = instruction.sources
        layer = operand.buffer.layer
        call = self._kernel_of(layer, operand.buffer).backward_activation()
        return sequence(self._views_of(layer, operand.buffer).before_delta, call)

    def _down(self, instruction: Instruction) -> Call:
        """Errors begin at losses, where those of padding are made zero: so they are everywhere below."""
        target, call = instruction.target, self._once(self._errors, instruction)
        kernel = self._kernel_of(self._edge(target.buffer).consumer, target.buffer)
        if not isinstance(kernel, LossKernel):
            return call
        judge, first, examples = kernel, self._first_example(target.buffer), kernel.context.batch
        parts = self.buffers[target.buffer].of(target.rows)

        def call_and_mask() -> None:
            judge.mean_over = self._mean_over(first)
            call()
            real = self._real(first, examples)
            if real < examples:
                for part in parts:
                    part[..., real:] = 0

        return call_and_mask

    def _errors(self, instruction: Instruction) -> Call:
        edge, rows = self._edge(instruction.target.buffer), _rows(instruction.target)
        kernel = self._kernel_of(edge.consumer, instruction.target.buffer)
        views = self._views_of(edge.consumer, instruction.target.buffer)
        call = kernel.backward_input(edge.number, rows, accumulate=instruction.accumulate)
        return sequence(call, views.after_errors(edge.number, rows))

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
        name, kernels = self._learnt(instruction)
        kernel, whole = kernels[0], self._gradients(name)
        by_blocks = self._device.blocks_fit_caches
        learning = FusedUpdate(kernels, self._held(name), start=0, by_blocks=by_blocks)
        if kernel.gradient_dtype == kernel.context.master:
            return learning.whole(whole)
        downcast = [self._device.zeros(gradient.shape, kernel.gradient_dtype) for gradient in whole]
        call = learning.whole(downcast)

        def upcast() -> None:
            call()
            for source, out in zip(downcast, whole, strict=True):
                self._device.copy(out, source)

        return upcast

    def _learnt(self, instruction: Instruction) -> tuple[str, tuple[Kernel, ...]]:
        """The layer that an instruction learns, and its kernels of all portions whose errors it reads."""
        name = _layer(instruction.target)
        errors = (source.buffer for source in instruction.sources if source.buffer.holds_errors)
        return name, tuple(self._kernel_of(name, buffer) for buffer in errors)

    def _held(self, name: str) -> tuple[ParameterSlice, ...]:
        """What the machine learns of a layer; of weights that it borrows, all."""
        grid = self.graph[name]
        own = self.owned.parameter_slices(name, self.machine)
        return own or tuple(ParameterSlice(parameter, grid.rows.hull) for parameter in grid.parameters)

    def _gradients(self, name: str) -> list[Array]:
        """The whole gradient of the parameters that the machine's rows of a layer use."""
        found = self.buffers.parameters_in(Buffer(BufferKind.GRADIENT, name))
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
            return no_op
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
        later = self._count(instruction)

        def call() -> None:
            if self._is_empty(later):
                return
            found = factors()
            for parameter, apply in applies:
                if not apply(found.get(parameter, 1.0), later):
                    self._tell_not_finite(name)

        return call

    def _learn(self, instruction: Instruction) -> Call:
        found, updates = self._learnt(instruction), self._updates
        assert updates is not None, f"{instruction} needs to know what to do with gradients"
        if found not in self._learners:
            tell = partial(self._tell_not_finite, found[0])
            self._learners[found] = self._learnings[found].call(self._scratch, updates, tell)
        learn, later = self._learners[found], self._count(instruction)

        def call() -> None:
            if not self._is_empty(later):
                learn(later)

        return call

    def _is_empty(self, minibatch: int) -> bool:
        """Whether no example of a minibatch of the step is real: nothing is learnt of it."""
        return not self._real(minibatch * self.plan.batch, 1)

    def _tell_not_finite(self, layer: str) -> None:
        """The gradient of a layer was not finite."""
        self.watch.look(gradient_of=layer)
        self.not_finite.add(layer)

    def _count(self, instruction: Instruction) -> int:
        """How many minibatches of the step a layer has learnt before this one."""
        count = self._updated[instruction.target.buffer]
        self._updated[instruction.target.buffer] += 1
        return count

    def _edge(self, buffer: Buffer) -> Edge:
        assert buffer.edge is not None, f"{buffer} lies on no edge"
        return buffer.edge

    def _kernel(self, name: str, number: int | None, views: KernelArrays) -> Kernel:
        """A layer's kernel, bound to the arrays that every call of it takes for portions of this number."""
        context = KernelContext(
            views.grid,
            views.rows,
            views.sources,
            tuple(held.rows for held in views.heard),
            tuple(held.rows for held in views.returned),
            self.plan.sizes.examples(activations(name)),
            self.plan.precision,
            self.plan.cluster.machines[self.machine].threads,
            self.plan.cluster.machines[self.machine].device,
            self.plan.batch,
            self.owned.input_span(name, self.machine),
            self.plan.products_of(self.machine),
        )
        borrowed = self.buffers.parameters_in(Buffer(BufferKind.PARAMETERS, name))
        summary = Buffer(BufferKind.SUMMARY, name)
        told = self.buffers.windows.get(summary.numbered(number))
        arrays = Arrays(
            inputs=tuple(held.array for held in views.heard),
            output=views.state,
            grad_output=views.delta,
            grad_inputs=tuple(held.array for held in views.returned),
            parameters=tuple(borrowed or self.vectors.views(name, self.vectors.read)),
            summaries=None if told is None else told.array,
            partial=None if context.input_rows is None else self._partial_sums(name, number, views.rows),
        )
        return build(context, arrays, self._pool)

    def _partial_sums(self, name: str, number: int | None, rows: tuple[int, int]) -> PartialSums:
        """The sums of all machines for these rows, in the order of the machines; and errors of all rows."""

        def at(buffer: Buffer) -> Buffer:
            return buffer.numbered(number)

        own, windows, terms = Buffer(BufferKind.PARTIAL_SUMS, name), self.buffers.windows, []
        for machine in sorted(piece.machine for piece in self.owned.of(name)):
            window = windows[at(own if machine == self.machine else own.received_from(machine))]
            terms.append(window.of(BoxSet((Box((rows,)),)))[0])
        deltas = windows.get(at(Buffer(BufferKind.GRAD_PREACTIVATION, name)))
        biased = self.owned.primary_rows(name, self.machine).hull
        return PartialSums(
            windows[at(own)].array,
            tuple(terms),
            None if deltas is None else deltas.array,
            biased[0],
        )


def _layer(operand: Operand) -> str:
    """Whose parameters or gradient an operand names."""
    return operand.buffer.layer


def _rows(operand: Operand) -> Spans:
    """The rows that an operand names; a kernel computes all columns that it knows."""
    return tuple(box[0] for box in operand.rows)
