"""Calls of a program's instructions for parameters: their gradients, norms and updates.

Norms are sums of squares over all machines: each machine sends its own to the others. All add up what they
received in the same order, and come to the same factors, to the bit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from partita.engine.kernels.calls import sequence
from partita.engine.kernels.kernel import Array, Call, Kernel, no_op
from partita.engine.runtime.buffers import Buffers
from partita.engine.runtime.fused_update import FusedUpdate, Scratch, Updates
from partita.engine.runtime.regularisation import Regularisation
from partita.layers import Parameter
from partita.partitioner.assign.parameter_slice import ParameterSlice
from partita.partitioner.ir.buffer import NORMS, Buffer, BufferKind, of_parameter
from partita.partitioner.ir.program import Instruction, Op

_Key: TypeAlias = tuple[str, tuple[Kernel, ...]]
"""A layer, and its kernels of the micro-batches whose gradients an instruction reads."""


class ParameterCalls:
    """Makes the calls of one program on one machine.

    Attributes:
        scratch_bytes: the memory for the largest block of gradients.
    """

    def __init__(
        self,
        buffers: Buffers,
        kernel_of: Callable[[str, Buffer], Kernel],
        updates: Updates | None,
        *,
        terms: Regularisation,
        is_empty: Callable[[int], bool],
        report_nonfinite: Callable[[str], None],
    ) -> None:
        """Decides the blocks of all layers.

        Args:
            buffers: the arrays of the machine's program.
            kernel_of: finds a layer's kernel for the micro-batch of a buffer.
            updates: a driver's use of gradients; None leaves them alone.
            terms: adds those of regularisers.
            is_empty: whether no example of a minibatch of the step is real, so that there is no update.
            report_nonfinite: called with a layer whose gradient was not finite.
        """
        self._buffers, self._vectors, self._device = buffers, buffers.vectors, buffers.device
        self._graph, self._updates, self._kernel_of = buffers.plan.graph, updates, kernel_of
        self._terms = terms
        self._is_empty, self._report_nonfinite = is_empty, report_nonfinite
        self._calls: dict[_Key, Callable[[int], None]] = {}
        self._updated: defaultdict[Buffer, int] = defaultdict(int)
        learns = (one for one in buffers.program.instructions if one.op is Op.FUSED_UPDATE)
        self._fused = {key: self._fused_update(key) for key in map(self._key, learns)}
        self.scratch_bytes = max((fused.scratch_bytes for fused in self._fused.values()), default=0)
        self._scratch: Scratch = partial(self._device.placed, self._device.memory(self.scratch_bytes))

    def _key(self, instruction: Instruction) -> _Key:
        layer = instruction.target.buffer.layer
        grads = (source.buffer for source in instruction.sources if source.buffer.holds_grad)
        return layer, tuple(self._kernel_of(layer, buffer) for buffer in grads)

    def _fused_update(self, key: _Key, *, start: int | None = None) -> FusedUpdate:
        layer, kernels = key
        grid, plan = self._graph[layer], self._buffers.plan
        slices = (
            plan.ownership.used_slices(layer, self._buffers.machine)
            if layer in self._graph.tied
            else plan.ownership.parameter_slices(layer, self._buffers.machine)
        )
        # Shared weights of another machine: all rows.
        slices = slices or tuple(ParameterSlice(one, grid.rows.hull) for one in grid.parameters)
        start = self._vectors.span(layer).start if start is None else start
        takes_rows = self._updates is not None and self._updates.takes_rows
        return FusedUpdate(
            kernels, slices, start=start, by_blocks=self._device.blocks_fit_caches, takes_rows=takes_rows
        )

    def _gradients(self, layer: str) -> list[Array]:
        """The whole gradient of the parameters that the machine's rows of a layer use."""
        found = self._buffers.parameters_in(Buffer(BufferKind.GRADIENT, layer))
        return self._vectors.views(layer, self._vectors.gradient) if found is None else found

    def gradient(self, instruction: Instruction) -> Call:
        """Writes the whole gradient of a layer's parameters."""
        layer, kernels = key = self._key(instruction)
        if layer in self._graph.tied:
            return self._added_gradient(instruction)
        kernel, whole = kernels[0], self._gradients(layer)
        fused = self._fused_update(key, start=0)
        add = self._own_terms(instruction, whole)
        if kernel.gradient_dtype == kernel.context.master:
            return sequence(fused.whole(whole), add)
        downcast = [self._device.zeros(gradient.shape, kernel.gradient_dtype) for gradient in whole]
        call = fused.whole(downcast)

        def upcast() -> None:
            call()
            for source, out in zip(downcast, whole, strict=True):
                self._device.copy(out, source)

        return sequence(upcast, add)

    def _added_gradient(self, instruction: Instruction) -> Call:
        """Adds the gradient of a layer's parameters to the sums in their places, or begins these with it."""
        layer, kernels = key = self._key(instruction)
        kernel, machine, device = kernels[0], self._buffers.machine, self._device
        fused, minibatch = self._fused_update(key, start=0), instruction.target.buffer.micro_batch or 0
        begun = {source.buffer for source in instruction.sources}
        slices = self._buffers.plan.ownership.used_slices(layer, machine)
        places = self._buffers.used(BufferKind.GRADIENT, layer)
        fresh: list[tuple[Parameter, Array]] = []  # whole sums that this layer is the first to add to
        adds = False
        for held, place in zip(slices, places, strict=True):
            name = of_parameter(BufferKind.GRADIENT, held.parameter.name)
            window = self._buffers.windows.get(name)
            if name not in begun:
                fresh.append((held.parameter, place if window is None else window.array))
            adds |= name in begun or fresh[-1][1].size != held.size
        zeros = [partial(_zero, array) for _, array in fresh] if adds else []
        terms = sequence(*(self._term(*each, minibatch) for each in fresh))
        in_place = all(not held.runs[2] for held in slices)
        if in_place and kernel.gradient_dtype == kernel.context.master:
            return sequence(*zeros, fused.whole(places, accumulate=adds), terms)
        apart = [device.zeros(held.shape, kernel.gradient_dtype) for held in slices]
        wide = [device.zeros(held.shape, kernel.context.master) for held in slices]
        call = fused.whole(apart)

        def call_and_add() -> None:
            call()
            for one, other, place in zip(apart, wide, places, strict=True):
                device.copy(other, one)
                (device.add if adds else device.copy)(place, other.reshape(place.shape))

        return sequence(*zeros, call_and_add, terms)

    def _term(self, parameter: Parameter, gradient: Array, minibatch: int) -> Call:
        """Adds a regulariser's term to the gradient of what the machine owns of a parameter."""
        span = self._vectors.place(parameter.name)
        add = None if span is None else self._terms.bind(parameter, span, gradient.reshape(-1))
        return no_op if add is None else partial(add, minibatch)

    def _learnt(self, gradient: Buffer) -> Iterator[tuple[Parameter, slice, Array]]:
        """The parameters of a gradient's buffer, their ranges in the vectors, and their gradients."""
        layer = gradient.layer
        if gradient.parameter is None:
            owned = self._vectors.spans(layer), self._gradients(layer)
            yield from zip(self._graph[layer].parameters, *owned, strict=True)
            return
        parameter = self._graph.parameters[f"{layer}.{gradient.parameter}"]
        span = self._vectors.place(parameter.name)
        assert span is not None, f"this machine does not own {parameter.name}"
        yield parameter, span, self._buffers.windows[gradient].array

    def _own_terms(self, instruction: Instruction, gradients: Sequence[Array]) -> Call:
        """Adds terms of regularisers to the whole gradients of the layer, where the machine owns it."""
        layer, minibatch = instruction.target.buffer.layer, instruction.target.buffer.micro_batch or 0
        spans = self._vectors.spans(layer)  # none where another machine owns shared weights
        bound = (
            self._terms.bind(parameter, span, gradient.reshape(-1))
            for parameter, span, gradient in zip(
                self._graph[layer].parameters, spans, gradients, strict=False
            )
        )
        adds = [add for add in bound if add is not None]
        return sequence(*(partial(add, minibatch) for add in adds))

    def squares(self, instruction: Instruction) -> Call:
        """Writes the sums of squares of the machine's parameters and of their gradients."""
        names = list(self._graph.parameters)
        found: list[tuple[int, Array, Callable[[], Any]]] = []
        updates, sum_of_squares = self._updates, self._device.sum_of_squares
        for source in instruction.sources:
            for parameter, span, gradient in self._learnt(source.buffer):
                if parameter.trainable:
                    flat = gradient.reshape(-1)
                    of_step = (
                        partial(sum_of_squares, flat) if updates is None else updates.bind_squares(span, flat)
                    )
                    found.append((names.index(parameter.name), self._vectors.parameters[span], of_step))
        (place,) = self._buffers[NORMS].of(instruction.target.rows)
        out = place.reshape(-1, 2)

        def call() -> None:
            out[...] = 0.0  # also for parameters that are elsewhere, or do not learn
            for number, values, of_step in found:
                out[number, 0] = sum_of_squares(values)
                out[number, 1] = of_step()

        return call

    def update(self, instruction: Instruction) -> Call:
        """Updates a layer's parameters by their whole gradient."""
        layer, updates = instruction.target.buffer.layer, self._updates
        if updates is None:
            return no_op
        applies = [
            (parameter.name, updates.bind(span, gradient.reshape(-1)))
            for parameter, span, gradient in self._learnt(instruction.sources[0].buffer)
            if parameter.trainable or parameter.averaged
        ]
        normed = any(source.buffer == NORMS for source in instruction.sources)
        factors = partial(self._factors, updates) if normed else dict[str, float]
        later = self._count(instruction)

        def call() -> None:
            if self._is_empty(later):
                return
            found = factors()
            for parameter, apply in applies:
                if not apply(found.get(parameter, 1.0), later):
                    self._report_nonfinite(layer)

        return call

    def _factors(self, updates: Updates) -> Mapping[str, float]:
        """The factors of all gradients, by the norms of all machines in their order."""
        squares = self._buffers[NORMS].array
        values, gradients = squares.reshape(len(squares), -1, 2).sum(axis=0).T.tolist()
        return updates.factors(
            dict(zip(self._graph.parameters, zip(values, gradients, strict=True), strict=True))
        )

    def fused_update(self, instruction: Instruction) -> Call:
        """Computes the gradient of a layer's parameters and updates them, block by block."""
        key, updates = self._key(instruction), self._updates
        assert updates is not None, f"{instruction} needs to know what to do with gradients"
        if key not in self._calls:
            report = partial(self._report_nonfinite, key[0])
            self._calls[key] = self._fused[key].call(self._scratch, updates, report, self._terms)
        update, later = self._calls[key], self._count(instruction)

        def call() -> None:
            if not self._is_empty(later):
                update(later)

        return call

    def _count(self, instruction: Instruction) -> int:
        """The number of minibatches of the step by which a layer was updated before this one."""
        count = self._updated[instruction.target.buffer]
        self._updated[instruction.target.buffer] += 1
        return count


def _zero(array: Array) -> None:
    array[...] = 0
