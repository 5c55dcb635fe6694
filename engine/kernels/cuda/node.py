"""The kernel of any layer of one input with a node definition, on a GPU: kernels that `node_text` writes.

A GPU's kernels cannot make arrays, nor raise exceptions. So a function runs only if it can be written as
numbers; and a place outside of an array, which is an error on a CPU, gives NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from types import FunctionType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from partita.engine.kernels.calls import sequence
from partita.engine.kernels.cuda.arrays import shared
from partita.engine.kernels.cuda.node_text import downward_text, upward_text
from partita.engine.kernels.cuda.tensor_kernel import TensorKernel, accumulated, columns, rows_of
from partita.engine.kernels.kernel import Array, Arrays, Call, KernelContext, no_op
from partita.engine.kernels.node import signature_of
from partita.engine.kernels.nodes import ir
from partita.engine.kernels.nodes.compiler import NodeCompileError
from partita.engine.kernels.nodes.source import meaning, written
from partita.engine.kernels.nodes.vectors import Signature
from partita.engine.kernels.nodes.wiring import Wiring
from partita.engine.kernels.tensors import array_of, tensor_of
from partita.engine.kernels.thread_pool import ThreadPool
from partita.engine.numerics import master, upcast
from partita.engine.numerics.cuda import FUNCTIONS, bound, cuda, kernel, on_device, strided
from partita.layers.box import Spans

R = np.float32
OUTSIDE = R(0)
"""The state of a sender on the padding."""


class NodeKernel(TensorKernel):
    """Runs a node definition: `downward` runs for each number that is needed of it.

    Raises:
        NodeCompileError: a function does what a GPU's kernel cannot.
    """

    def __init__(self, context: KernelContext, arrays: Arrays, pool: ThreadPool) -> None:
        super().__init__(context, arrays, pool)
        definition, self._wiring = context.grid.layer.definition, Wiring.of(context)
        assert definition is not None
        self._functions = definition.upward, definition.downward
        self.gradient_by_rows = not context.grid.shares_weights
        self._signature, self._device = signature_of(context), self.output.device.index
        wiring, x = self._wiring, self._shared(columns(self.inputs[0]))
        tables = (wiring.senders, wiring.firsts, wiring.counts, wiring.edges, wiring.owns)
        flats = (self._shared(parameter.reshape(-1)) for parameter in self.parameters)
        self._given = (x, *map(self._table, tables), *flats, self._shared(columns(self.output)))
        self._up = self._compiled(definition.upward, upward_text)
        self._down = {} if definition.downward is None else self._compiled(definition.downward, downward_text)
        self._receivers: tuple[Any, ...] | None = None

    def _compiled(self, function: Callable[..., Any], write: Callable[..., str]) -> dict[str, Any]:
        try:
            outside = self.context.grid.layer.padding_value
            return _kernels(function, write, self._signature, self._wiring.width, outside, meaning(function))
        except ir.Unsupported as found:
            what = f"{self.context.label}: {function.__name__}"
            raise NodeCompileError(
                f"{what} cannot run on {self.context.device}, which takes arithmetic, loops and functions of "
                f"numbers alone ({found}); write it so, or give the layer to a machine whose device is 'cpu'"
            ) from found

    def forward(self, *, block: tuple[int, int] | None = None, first: bool = True, last: bool = True) -> Call:
        """Computes the output; a sum in blocks waits for all of them."""
        if not last:
            return no_op
        return bound(self._up["forward"], self.output.numel(), *self._given, device=self._device)

    def backward_input(self, source: int, rows: Spans, *, accumulate: bool) -> Call:
        """Computes the gradient of the input, receivers in ascending order."""
        grad, out, window = (
            self._shared(columns(self.own_grad)),
            self.grad_input(0),
            self.context.grad_windows[0],
        )
        if self._receivers is None:
            self._receivers = tuple(map(self._table, _receivers(self._wiring, len(columns(self.inputs[0])))))
        per_row, first_sender = self.context.sources[0].nodes_per_row, self.context.windows[0][0]
        calls = []
        for start, stop in rows:
            place = columns(rows_of(out, (start, stop), window))
            asked = ((start - first_sender) * per_row, (stop - first_sender) * per_row, accumulate)
            given = *self._given, grad, *self._receivers, self._shared(place), *asked
            calls.append(bound(self._downward("backward_input"), place.numel(), *given, device=self._device))
        return sequence(*calls)

    def backward_parameters(
        self, out: Sequence[Array], rows: tuple[int, int] | None = None, *, accumulate: bool = False
    ) -> Call:
        """Computes parameter gradients, summed over the examples."""
        if accumulate:
            return accumulated(lambda terms: self.backward_parameters(terms, rows), out)
        wiring, grid, asked = self._wiring, self.context.grid, rows or self.context.rows
        start, stop = ((row - self.context.rows[0]) * grid.nodes_per_row for row in asked)
        step = grid.shape[-1] if grid.shares_weights else stop - start
        grad = self._shared(columns(self.own_grad))
        calls = []
        for i, ((_, kind), array) in enumerate(zip(self._signature.parameters, out, strict=True), start=1):
            numbers = wiring.edges if kind == "e" else wiring.owns
            begin = int(numbers[start])
            given = *self._given, grad, self._shared(tensor_of(array).view(-1)), start, stop, step, begin
            n_threads = step * (wiring.width if kind == "e" else 1)
            calls.append(bound(self._downward(f"gradient_{i}"), n_threads, *given, device=self._device))
        return sequence(*calls)

    def _downward(self, name: str) -> Any:
        if not self._down:
            raise ValueError(
                f"{self.context.label} has no downward function, and training "
                f"needs one; give it one with @{self._functions[0].__name__}.downward"
            )
        return self._down[name]

    def _table(self, table: npt.NDArray[Any]) -> Any:
        """Copies a table of the wiring to the device; never empty, as an empty one has no address."""
        held = np.ascontiguousarray(table if table.size else np.zeros(1, table.dtype))
        return self._shared(torch.from_numpy(held).to(self.output.device))

    def _shared(self, tensor: torch.Tensor) -> Any:
        return shared(array_of(tensor if tensor.numel() else self.zeros(1, dtype=tensor.dtype)))


def _receivers(wiring: Wiring, n_senders: int) -> tuple[npt.NDArray[Any], ...]:
    """For each sender, where its receivers begin, and at last their end; receivers, and the numbers of their
    edges.
    """
    nodes = np.repeat(np.arange(len(wiring.counts), dtype=np.int32), wiring.counts)
    begin = np.cumsum(wiring.counts, dtype=np.int64) - wiring.counts
    taps = np.arange(len(nodes)) - np.repeat(begin, wiring.counts)
    senders = wiring.senders[np.repeat(wiring.firsts, wiring.counts) + taps]
    order = np.argsort(senders, kind="stable")  # nodes are in order already
    starts = np.searchsorted(senders[order], np.arange(n_senders + 1))
    return starts.astype(np.int64), nodes[order], taps[order].astype(np.int32)


@lru_cache(maxsize=128)
def _kernels(
    function: Callable[..., Any],
    write: Callable[..., str],
    signature: Signature,
    width: int,
    outside: float = 0.0,
    meant: Hashable = (),
) -> dict[str, Any]:
    """Compiles the kernels of a function, by their names.

    Raises:
        Unsupported: it cannot be written so.
    """
    source = written(function)
    if source is None:
        raise ir.Unsupported("its source is not there to be read")
    text, real = write(source, signature, width), master(signature.precision).type
    helpers = (_incoming_at, _number, _kept)
    names: dict[str, Any] = {
        **FUNCTIONS,
        **{
            helper.__name__.lstrip("_"): on_device(helper, R=real, OUTSIDE=real(outside))
            for helper in helpers
        },
        "keep": on_device(_keep),
        "within": on_device(_within),
        "device": cuda.jit(device=True),
        "math": math,
        "np": np,
        "cuda": cuda,
        "strided": strided,
        "R": real,
    }
    known = set(names)
    exec(compile(text, f"<{function.__name__} on a GPU>", "exec"), names)
    return {
        name: kernel(value)
        for name, value in names.items()
        if name not in known and isinstance(value, FunctionType)
    }


def _incoming_at(x: Any, senders: Any, first: int, k: int, e: int) -> Any:
    """The activation of the sender of edge number `k`."""
    if k < 0:
        return R(math.nan)
    sender = senders[first + k]
    return upcast(x[sender, e]) if sender >= 0 else OUTSIDE


def _number(parameter: Any, edge: int, k: int) -> Any:
    """The number of edge number `k`."""
    return upcast(parameter[edge + k]) if k >= 0 else R(math.nan)


def _kept(array: Any, k: int) -> Any:
    """The number at a place of a function's own array."""
    return array[k] if k >= 0 else R(math.nan)


def _keep(array: Any, k: int, value: Any) -> None:
    """Writes a number into a function's own array."""
    if k >= 0:
        array[k] = value


def _within(index: int, length: int) -> int:
    """The place from 0 of an index; -1 where it lies outside."""
    place = index + length if index < 0 else index
    return place if 0 <= place < length else -1
