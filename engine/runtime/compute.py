"""Calls of a program: each computation as one function without arguments, made once, before the first step.

This is where buffers, kernels and the feed meet. The module must not know messages or drivers.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from partita.engine.kernels.calls import sequence
from partita.engine.kernels.kernel import Call, Kernel, LossKernel, MicroBatch, PartialKernel, no_op
from partita.engine.kernels.thread_pool import ThreadPool
from partita.engine.numerics import master
from partita.engine.runtime.buffers import Buffers
from partita.engine.runtime.distillation import Distillation
from partita.engine.runtime.feed import Feed
from partita.engine.runtime.fused_update import Updates
from partita.engine.runtime.layer_kernel import LayerKernel
from partita.engine.runtime.metric import Metric
from partita.engine.runtime.metrics import Metrics
from partita.engine.runtime.nonfinite import NonfiniteWatch
from partita.engine.runtime.parameter_calls import ParameterCalls
from partita.engine.runtime.regularisation import Regularisation
from partita.engine.runtime.reported_sums import ReportedSums
from partita.engine.runtime.watchdog import Watchdog
from partita.layers.box import Spans
from partita.layers.losses import Loss
from partita.partitioner.ir.buffer import Buffer, BufferKind, Edge
from partita.partitioner.ir.program import COMPUTES, Instruction, Op, Operand

_BACKWARD: Final = frozenset(
    (Op.GRAD_PREACTIVATION, Op.ADD, Op.FUSED_UPDATE, Op.GRADIENT, Op.SQUARES, Op.UPDATE)
)


class Computations:
    """The computations of one program on one machine.

    Attributes:
        calls: one for each instruction; None for messages.
        metrics: sums of the machine's losses.
        watch: finds arrays that are not finite.
        not_finite: the layers whose gradients were not.
        watchdog: finds computations that do not end.
        scratch_bytes: the memory for the largest block of gradients.
        distillation: of what is computed next.
        pool: the threads of the machine's kernels, for work between two steps.
    """

    def __init__(
        self,
        buffers: Buffers,
        feed: Feed,
        updates: Updates | None = None,
        *,
        metrics: Sequence[Metric] = (),
    ) -> None:
        """Builds and compiles every kernel.

        Args:
            buffers: the arrays of the machine's program.
            feed: fills inputs and targets.
            updates: a driver's use of gradients; None leaves them alone.
            metrics: figures that are reported beside the loss.
        """
        self._reported = ReportedSums.of(buffers.plan.graph, metrics)
        plan, program = buffers.plan, buffers.program
        self.buffers, self._feed, self._plan = buffers, feed, plan
        self.metrics, self.watch, self.watchdog = Metrics(), NonfiniteWatch(buffers), Watchdog(self._describe)
        self.not_finite: set[str] = set()
        self._device, self._slots = buffers.device, program.slots
        self.distillation = Distillation(buffers.device, master(plan.precision))
        threads = plan.cluster.machines[buffers.machine].threads
        self.pool = ThreadPool(threads, shares=plan.products_of(buffers.machine).threads)
        numbers = [None] if program.pipeline.total == 1 else range(program.slots)
        self._kernels = {
            (grid.name, number): LayerKernel(buffers, grid, number, self.pool)
            for grid in plan.graph.computed
            if plan.ownership.rows(grid.name, buffers.machine)
            for number in numbers
        }
        self._made: dict[tuple[object, ...], Call] = {}
        parameters = ParameterCalls(
            buffers,
            lambda layer, buffer: self._of(layer, buffer).kernel,
            updates,
            terms=Regularisation(
                buffers.vectors,
                counts=lambda minibatch: self._counts(minibatch * plan.batch),
                add_loss=self.metrics.add_term,
            ),
            is_empty=lambda minibatch: not self._real(minibatch * plan.batch, 1),
            report_nonfinite=self._report_nonfinite,
        )
        self.scratch_bytes = parameters.scratch_bytes
        self._makers: dict[Op, Callable[[Instruction], Call]] = {
            Op.FEED: self._fill,
            Op.MULTIPLY: self._forward,
            Op.FORWARD: self._forward,
            Op.GRAD_PREACTIVATION: partial(self._once, self._grad_preactivation),
            Op.GRAD_INPUT: self._grad_input,
            Op.ADD: partial(self._once, self._add),
            Op.SUMMARISE: self._summarise,
            Op.GRADIENT: parameters.gradient,
            Op.SQUARES: parameters.squares,
            Op.UPDATE: parameters.update,
            Op.FUSED_UPDATE: parameters.fused_update,
        }
        self.calls: tuple[Call | None, ...] = tuple(
            self._makers[instruction.op](instruction) if instruction.op in COMPUTES else None
            for instruction in program.instructions
        )
        self._without_teachers = tuple(map(self._is_behind_losses, program.instructions))
        self._count_backward_calls()

    def _count_backward_calls(self) -> None:
        """Lets each kernel know how many calls its backward pass has, so that it can free what they read."""
        calls: Counter[tuple[str, int | None]] = Counter()
        for instruction in self.buffers.program.instructions:
            target = instruction.target.buffer
            if instruction.op is Op.GRAD_INPUT:
                calls[_edge(target).consumer, target.micro_batch] += 1
            elif instruction.op in (Op.GRADIENT, Op.FUSED_UPDATE):
                grads = (source.buffer for source in instruction.sources if source.buffer.holds_grad)
                calls.update((target.layer, buffer.micro_batch) for buffer in grads)
        most = dict[str, int]()  # a kernel of all micro-batches has the calls of one after each forward pass
        for (layer, _), n in calls.items():
            most[layer] = max(n, most.get(layer, 0))
        for (layer, _), bound in self._kernels.items():
            bound.kernel.backward_calls = most.get(layer, 0)

    def run(self, position: int) -> None:
        """Runs one computation; several threads may run different ones."""
        if self.distillation.is_teaching and self._without_teachers[position]:
            return
        call = self.calls[position]
        assert call is not None, f"instruction {position} is not a computation"
        self.watchdog.begin(position)
        try:
            call()
        finally:
            self.watchdog.end()
        self.watch.done(position)

    def _is_behind_losses(self, instruction: Instruction) -> bool:
        """Returns whether a computation is of the backward pass, but for the gradients of losses."""
        if instruction.op is Op.GRAD_INPUT:
            return not isinstance(self._plan.graph[_edge(instruction.target.buffer).consumer].layer, Loss)
        return instruction.op in _BACKWARD or instruction.target.buffer.kind is BufferKind.GRAD_SUMMARY

    def finish(self) -> None:
        """Waits until all computations are done: a GPU goes on when a call has returned."""
        self._device.finish()

    def close(self) -> None:
        """Ends the threads that kernels share."""
        self.finish()
        self.pool.close()

    def _describe(self, position: int) -> str:
        """The instruction, its layer and the layer's kind, for an error."""
        instruction = self.buffers.program.instructions[position]
        buffer = instruction.target.buffer
        name = buffer.edge.consumer if buffer.edge and instruction.op is Op.GRAD_INPUT else buffer.layer
        kind = self._plan.graph[name].layer.kind
        return f"{instruction.op} {instruction.target}, a computation of {kind} '{name}',"

    def _report_nonfinite(self, layer: str) -> None:
        """Notes that the gradient of a layer was not finite."""
        self.watch.look(gradient_of=layer)
        self.not_finite.add(layer)

    def _once(self, make: Callable[[Instruction], Call], instruction: Instruction) -> Call:
        """Makes a call once for all micro-batches that share a place."""
        operands = (instruction.target, *instruction.sources)
        places = ((operand.buffer.place(self._slots), operand.rows) for operand in operands)
        key = (instruction.op, instruction.accumulate, *places)
        if key not in self._made:
            self._made[key] = make(instruction)
        return self._made[key]

    def _of(self, layer: str, buffer: Buffer) -> LayerKernel:
        """A layer's kernel for the micro-batch of a buffer."""
        return self._kernels[layer, buffer.place(self._slots).micro_batch]

    def _fill(self, instruction: Instruction) -> Call:
        buffer, rows = instruction.target.buffer, instruction.target.rows
        window, first, fill = self.buffers[buffer], self._first_example(buffer), self._feed.fill
        boxes = list(zip(rows, window.arriving(rows), strict=True))

        def call() -> None:
            window.wait()
            for box, out in boxes:
                fill(buffer.layer, box, out, first=first)
            window.upload(rows)

        return call

    def _first_example(self, buffer: Buffer) -> int:
        """The number in the step of a buffer's first example."""
        return (buffer.micro_batch or 0) * self._plan.sizes.examples(buffer)

    def _real(self, first: int, examples: int) -> int:
        """The number of real examples among so many, of which the first has this number in the step."""
        return min(max(self._feed.count - first, 0), examples)

    def _mean_over(self, first: int) -> int:
        """The number of examples over which the gradient of the minibatch of example `first` is the mean."""
        batch = self._plan.batch
        if self._feed.mean_over is not None:
            return self._feed.mean_over
        return batch if self._feed.pads_portions else self._real(first // batch * batch, batch) or batch

    def _counts(self, first: int) -> tuple[int, int]:
        """The real examples of the minibatch of example `first`, and those its gradient is the mean over."""
        return self._real(first, self._plan.batch), self._mean_over(first)

    def _forward(self, instruction: Instruction) -> Call:
        buffer, call = instruction.target.buffer, self._once(self._sum, instruction)
        kernel = self._of(buffer.layer, buffer).kernel
        if not isinstance(kernel, LossKernel):
            return sequence(self._begin(kernel, buffer), call)
        owners = self._plan.ownership.loss_owners(buffer.layer)
        counts = self.buffers.machine in owners
        loss_kernel, first, examples = kernel, self._first_example(buffer), kernel.context.batch
        begin = self._begin(kernel, buffer)
        layer = self._plan.graph[buffer.layer].layer
        weight = layer.loss_weight if isinstance(layer, Loss) else 1.0
        is_first = self.buffers.machine == owners[0]
        if counts:
            self.metrics.expect(buffer)

        def call_and_count() -> None:
            loss_kernel.mean_over = self._mean_over(first)
            loss_kernel.loss_scale = self._feed.loss_scale
            begin()
            call()
            if not counts:
                return
            real = self._real(first, examples)
            loss, correct = loss_kernel.metrics(real)
            sums = self._reported.of_kernel(loss_kernel, loss, real, self._device.given, is_first=is_first)
            self.metrics.add(buffer, weight * loss, correct, sums)
            if not math.isfinite(loss):
                self.watch.look()

        return call_and_count

    def _begin(self, kernel: Kernel, buffer: Buffer) -> Call:
        number, first = buffer.micro_batch or 0, self._first_example(buffer)

        def begin() -> None:
            real, mean_over = self._real(first, kernel.context.batch), self._mean_over(first)
            kernel.begin(MicroBatch(self._feed, number, first, real, mean_over))

        return begin if kernel.follows_steps else no_op

    def _sum(self, instruction: Instruction) -> Call:
        buffer, owned = instruction.target.buffer, self._plan.ownership
        layer = self._of(buffer.layer, buffer)
        if buffer.kind is BufferKind.PARTIAL_SUMS:
            assert isinstance(layer.kernel, PartialKernel), f"{instruction} is of no layer cut by its inputs"
            return sequence(layer.before_sum, layer.kernel.multiply(_rows(instruction.target)[0]))
        by_blocks = self._plan.graph[buffer.layer].layer.splits_sum and not owned.is_input_split(buffer.layer)
        block = _rows(instruction.sources[0])[0] if by_blocks else None
        last = instruction.op is Op.FORWARD
        rows = instruction.target.rows
        if last and not by_blocks and rows != owned.rows(buffer.layer, self.buffers.machine):
            return sequence(layer.before_sum, layer.kernel.forward_rows(rows.spans))
        call = layer.kernel.forward(block=block, first=not instruction.accumulate, last=last)
        return sequence(layer.before_forward, call, layer.after_forward if last else no_op)

    def _summarise(self, instruction: Instruction) -> Call:
        buffer, piece = instruction.target.buffer, instruction.target.rows.hull[0][0]
        layer = self._of(buffer.layer, buffer)
        if buffer.kind is BufferKind.GRAD_SUMMARY:
            return layer.kernel.summarise_gradient(piece)
        begin = self._begin(layer.kernel, buffer)
        return sequence(begin, layer.before_forward, layer.kernel.summarise(piece))

    def _grad_preactivation(self, instruction: Instruction) -> Call:
        (source,) = instruction.sources
        layer = self._of(source.buffer.layer, source.buffer)
        return sequence(layer.before_backward, layer.kernel.backward_activation())

    def _grad_input(self, instruction: Instruction) -> Call:
        """Gradients begin at losses, where those of padding are set to zero: so they are zero everywhere."""
        target, call = instruction.target, self._once(self._grad_rows, instruction)
        kernel = self._of(_edge(target.buffer).consumer, target.buffer).kernel
        if not isinstance(kernel, LossKernel):
            return call
        loss_kernel, first, examples = kernel, self._first_example(target.buffer), kernel.context.batch
        parts = self.buffers[target.buffer].of(target.rows)
        call = self.distillation.around(call, parts, accumulates=instruction.accumulate)

        def call_and_mask() -> None:
            loss_kernel.mean_over = self._mean_over(first)
            loss_kernel.loss_scale = self._feed.loss_scale
            call()
            real = self._real(first, examples)
            if real < examples:
                for part in parts:
                    part[..., real:] = 0

        return call_and_mask

    def _grad_rows(self, instruction: Instruction) -> Call:
        edge, rows = _edge(instruction.target.buffer), _rows(instruction.target)
        layer = self._of(edge.consumer, instruction.target.buffer)
        call = layer.kernel.backward_input(edge.number, rows, accumulate=instruction.accumulate)
        return sequence(call, layer.after_backward_input(edge.number, rows))

    def _add(self, instruction: Instruction) -> Call:
        (other,), target = instruction.sources, instruction.target
        targets, others = (
            self.buffers[target.buffer].of(target.rows),
            self.buffers[other.buffer].of(other.rows),
        )
        pairs = list(zip(targets, others, strict=True))
        act = self._device.add if instruction.accumulate else self._device.copy

        def call() -> None:
            for one, source in pairs:
                act(one, source)

        return call


def _edge(buffer: Buffer) -> Edge:
    assert buffer.edge is not None, f"{buffer} lies on no edge"
    return buffer.edge


def _rows(operand: Operand) -> Spans:
    """The rows of an operand; a kernel computes all columns that it knows."""
    return tuple(box[0] for box in operand.rows)
