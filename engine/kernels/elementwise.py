"""Layers whose node i listens to node i of each input: activations, and the sum of several inputs."""

from __future__ import annotations

import numpy as np

from partita.engine.kernels import activations
from partita.engine.kernels.kernel import Array, Arrays, Call, Kernel, KernelContext
from partita.engine.kernels.thread_pool import ThreadPool
from partita.engine.kernels.views import rows_of
from partita.layers.activations import Activation
from partita.layers.box import BoxSet, Spans


class ActivationKernel(Kernel):
    """An activation function of every node."""

    def __init__(self, context: KernelContext, arrays: Arrays, pool: ThreadPool) -> None:
        super().__init__(context, arrays, pool)
        assert isinstance(context.grid.layer, Activation)
        self._function = context.grid.layer.function
        self._loops = activations.LOOPS[self._function]

    def forward(self, *, block: tuple[int, int] | None = None, first: bool = True, last: bool = True) -> Call:
        """Copies the rows and applies the function in place."""
        own, operations = self.context.rows, self.context.operations
        state, source = self.arrays.output, rows_of(self.arrays.inputs[0], own, self.context.windows[0])

        def work(start: int, stop: int) -> None:
            states = rows_of(state, (start, stop), own)
            np.copyto(states, rows_of(source, (start, stop), own))
            activations.activate(self._function, states)

        if self._function != "linear":
            activations.warm(self._loops.activate, self.context.dtype)
        return lambda: self.pool.split(*own, work, operations=operations)

    def backward_input(self, source: int, rows: Spans, *, accumulate: bool) -> Call:
        """The errors times the slope."""
        own, window, operations = self.context.rows, self.context.grad_windows[0], self.context.operations
        state, delta, out = self.arrays.output, self.arrays.own_grad, self.arrays.grad_input(source)
        rest = () if accumulate else without_receivers(self.context, rows, out, window)
        heard = (BoxSet.of_rows(*rows) & BoxSet.of_rows(own)).spans
        activations.warm(self._loops.add if accumulate else self._loops.write, self.context.dtype)

        def work(start: int, stop: int) -> None:
            run = (start, stop)
            states, errors = rows_of(state, run, own), rows_of(delta, run, own)
            activations.add_error(
                self._function, states, errors, rows_of(out, run, window), accumulate=accumulate
            )

        def call() -> None:
            for place in rest:
                place[...] = 0
            for run in heard:
                self.pool.split(*run, work, operations=operations)

        return call


class AddKernel(Kernel):
    """The sum of the inputs, in their order. Every input receives the layer's own errors."""

    def forward(self, *, block: tuple[int, int] | None = None, first: bool = True, last: bool = True) -> Call:
        """Adds input after input."""
        own, state = self.context.rows, self.arrays.output
        heard = zip(self.arrays.inputs, self.context.windows, strict=True)
        one, other, *others = (rows_of(term, own, window) for term, window in heard)

        def call() -> None:
            np.add(one, other, out=state)
            for term in others:
                np.add(state, term, out=state)

        return call

    def backward_input(self, source: int, rows: Spans, *, accumulate: bool) -> Call:
        """Hands the errors on."""
        own, window = self.context.rows, self.context.grad_windows[source]
        delta, out = self.arrays.own_grad, self.arrays.grad_input(source)
        rest = () if accumulate else without_receivers(self.context, rows, out, window)
        pairs = [
            (rows_of(out, run, window), rows_of(delta, run, own))
            for run in (BoxSet.of_rows(*rows) & BoxSet.of_rows(own)).spans
        ]

        def call() -> None:
            for place in rest:
                place[...] = 0
            for place, error in pairs:
                if accumulate:
                    np.add(place, error, out=place)
                else:
                    np.copyto(place, error)

        return call


def without_receivers(
    context: KernelContext, rows: Spans, out: Array, window: tuple[int, int]
) -> tuple[Array, ...]:
    """Of the asked rows, views of those that no node of this machine listens to."""
    return tuple(
        rows_of(out, run, window) for run in (BoxSet.of_rows(*rows) - BoxSet.of_rows(context.rows)).spans
    )
