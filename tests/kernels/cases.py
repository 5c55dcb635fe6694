"""A layer, its inputs and errors; and how to play it whole, or in pieces the way machines do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import strategies as st

from partita.engine.kernels import Array, Arrays, Kernel, KernelContext, ThreadPool, build
from partita.engine.numerics import downcast_array, upcast_array
from partita.layers import Box, BoxSet, Grid, Layer, Loss, Network
from partita.layers.box import NOTHING
from partita.partitioner.cluster.products import Products
from partita.partitioner.cluster.threads import ThreadShares
from tests.kernels.reference import Reference

Shape = tuple[int, ...]
_UNWRITTEN = 0x7FC0
"""A NaN in bfloat16's bits."""


@dataclass(frozen=True)
class Case:
    """A layer with everything that it is given, whole."""

    grid: Grid
    sources: tuple[Grid, ...]
    inputs: tuple[Array, ...]
    parameters: tuple[Array, ...]
    error: Array
    products: Products = Products()  # noqa: RUF009 - frozen

    @property
    def batch(self) -> int:
        return int(self.error.shape[-1])

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.error.dtype

    @property
    def precision(self) -> str:
        return "bfloat16" if self.dtype == np.uint16 else self.dtype.name

    @property
    def rounded(self) -> Case:
        """The same in bfloat16."""
        return self._mapped(
            lambda array: downcast_array(array.astype(np.float32), np.empty(array.shape, np.uint16))
        )

    @property
    def upcast(self) -> Case:
        """Returns bfloat16 numbers in float32, and others unchanged."""
        return self._mapped(upcast_array) if self.dtype == np.uint16 else self

    def _mapped(self, change: Callable[[Array], Array]) -> Case:
        inputs = tuple(array if array.dtype == np.int64 else change(array) for array in self.inputs)
        parameters = tuple(map(change, self.parameters))
        return replace(self, inputs=inputs, parameters=parameters, error=change(self.error))

    def context(
        self, rows: tuple[int, int] | None = None, *, extra: int = 0, threads: int = 1
    ) -> KernelContext:
        """Context of a machine with these rows, whose windows are `extra` rows wider on each side than
        necessary.
        """
        rows = rows or (0, self.grid.n_rows)
        windows = []
        for source, _ in enumerate(self.sources):
            start, stop = self.needs(rows, source).hull[0]
            windows.append((max(start - extra, 0), min(stop + extra, self.sources[source].n_rows)))
        held = tuple(windows)
        context = KernelContext(
            self.grid, rows, self.sources, held, held, self.batch, self.precision, threads
        )
        return replace(context, products=self.products)

    def arrays(self, context: KernelContext) -> Arrays:
        """Arrays of a kernel in this context; those that it must write are NaN."""
        windows = zip(self.inputs, context.windows, strict=True)
        whole = zip(self.inputs, context.grad_windows, strict=True)
        return Arrays(
            inputs=tuple(array[start:stop].copy() for array, (start, stop) in windows),
            output=unwritten(self.error[slice(*context.rows)]),
            grad_output=self.error[slice(*context.rows)].copy(),
            grad_inputs=tuple(unwritten(array[start:stop]) for array, (start, stop) in whole),
            parameters=tuple(
                array.copy()
                if parameter.shared  # who does not own it has borrowed it
                else array.reshape(-1)[slice(*parameter.span(context.rows))]
                .copy()
                .reshape(-1, *parameter.shape[1:])
                for array, parameter in zip(self.parameters, self.grid.parameters, strict=True)
            ),
        )

    def kernel(self, context: KernelContext | None = None) -> Kernel:
        """The layer's kernel, at this site or over the whole layer."""
        context = context or self.context()
        return build(context, self.arrays(context))

    def needs(self, rows: tuple[int, int], source: int) -> BoxSet:
        """The rows of an input that these rows listen to."""
        if isinstance(self.grid.layer, Loss):
            return self.sources[source].rows
        return self.grid.wirings[source].source_rows(
            Box((rows,)), self.grid.shape, self.sources[source].shape
        )

    @property
    def reference(self) -> Reference:
        return Reference(self.grid, self.sources)


@dataclass(frozen=True)
class Played:
    """Results over all machines, joined."""

    state: Array
    errors: tuple[Array, ...]
    gradients: tuple[Array, ...]


def case(
    layer: Layer,
    *shapes: Shape,
    batch: int,
    seed: int = 0,
    dtype: type = np.float64,
    target: Array | None = None,
) -> Case:
    """A layer over inputs of these shapes, filled with normal numbers; with a target if it is a loss."""
    net = Network("case")
    inputs = [net.input(f"input_{i}", shape=shape) for i, shape in enumerate(shapes)]
    if isinstance(layer, Loss):
        states = layer(*inputs, net.target("target"))
        net.loss = states
    else:
        states = layer(*inputs)
    graph = net.graph()
    grid = graph[states.name]
    sources = tuple(graph[name] for name in grid.sources)
    draw = np.random.default_rng(seed)
    arrays = [draw.normal(size=(*shape, batch)).astype(dtype) for shape in shapes]
    if target is not None:
        arrays.append(target.astype(np.int64 if target.dtype.kind == "i" else dtype))
    parameters = tuple(draw.normal(size=parameter.shape).astype(dtype) for parameter in grid.parameters)
    error = draw.normal(size=(*grid.shape, batch)).astype(dtype)
    return Case(grid, sources, tuple(arrays), parameters, error)


def play(given: Case, *cuts: int, extra: int = 0, threads: int = 1) -> Played:
    """Plays the layer on one machine, or on several that hold its rows between the cuts.

    The errors of an input's row are one running sum: each machine continues what those before it began, and
    writes nowhere else.
    """
    if given.grid.summary is not None and not isinstance(given.grid.layer, Loss):
        cuts = ()  # rows need what machines tell one another: `test_summaries` cuts them
    edges = [0, *sorted(set(cuts) - {0, given.grid.n_rows}), given.grid.n_rows]
    inputs = [i for i, source in enumerate(given.sources) if source.layer.kind != "Target"]
    sums = [np.zeros_like(given.inputs[i]) for i in inputs]
    begun = [NOTHING for _ in inputs]
    pieces, gradients = [], []
    for rows in pairwise(edges):
        piece = _Piece(given, rows, extra=extra, threads=threads)
        pieces.append(piece.state)
        gradients.append(piece.gradients)
        for i in inputs:
            begun[i] = piece.continue_errors(i, sums[i], begun[i])
        piece.pool.close()
    joined = []
    for i, parameter in enumerate(given.grid.parameters):
        parts = [found[i] for found in gradients]
        joined.append(
            sum(parts[1:], parts[0]) if parameter.shared else np.concatenate(parts).reshape(parameter.shape)
        )
    return Played(np.concatenate(pieces), tuple(sums), tuple(joined))


def unwritten(array: Array) -> Array:
    """One like this, full of NaN; labels, for which there is none, are 0."""
    if array.dtype == np.int64:
        return np.zeros_like(array)
    return np.full_like(array, _UNWRITTEN if array.dtype == np.uint16 else np.nan)


def is_unwritten(array: Array) -> Array:
    """Marks the numbers that are NaN."""
    return array == _UNWRITTEN if array.dtype == np.uint16 else np.isnan(array)


class _Piece:
    """One machine's rows: forward, activation and parameter gradients at once; input gradients when asked."""

    def __init__(self, given: Case, rows: tuple[int, int], *, extra: int, threads: int) -> None:
        self.given, self.context = given, given.context(rows, extra=extra, threads=threads)
        if len(given.error) == rows[1] - rows[0]:  # alone, it answers for the rows that feed nobody too
            whole = tuple((0, source.n_rows) for source in given.sources)
            self.context = replace(self.context, grad_windows=whole)
        self.pool = ThreadPool(threads, shares=ThreadShares(loop=0))
        self.arrays = given.arrays(self.context)
        kernel = self.kernel = build(self.context, self.arrays, self.pool)
        self._forward(rows)
        kernel.backward_activation()()
        self.gradients = [np.full(p.shape, np.nan, kernel.gradient_dtype) for p in self.arrays.parameters]
        kernel.backward_parameters(self.gradients)()
        self._check_that_gradients_add_up()
        self.state = self.arrays.output

    def _forward(self, rows: tuple[int, int]) -> None:
        """All rows at once; where they may be computed in any order, a piece computes its last one first."""
        start, stop = rows
        if self.context.n_rows == self.given.grid.n_rows or not self.given.grid.layer.by_rows:
            self.kernel.forward()()
            return
        self.kernel.forward_rows(((stop - 1, stop),))()
        if stop - start > 1:
            between = start + (stop - 1 - start) // 2
            runs = (start, between), (between, stop - 1)
            self.kernel.forward_rows(tuple(run for run in runs if run[0] < run[1]))()

    def _check_that_gradients_add_up(self) -> None:
        """Added to themselves they are twice themselves, within rounding."""
        sums = [gradient.copy() for gradient in self.gradients]
        self.kernel.backward_parameters(sums, accumulate=True)()
        rounding = {"float32": 1e-4, "float64": 1e-9, "bfloat16": 0.02}[self.context.precision]
        for once, twice in zip(map(upcast_array, self.gradients), map(upcast_array, sums), strict=True):
            scale = max(1.0, float(np.abs(once).max(initial=0.0)))
            np.testing.assert_allclose(twice, 2 * once, rtol=rounding, atol=rounding * scale)

    def continue_errors(self, source: int, sums: Array, begun: BoxSet) -> BoxSet:
        """Adds this machine's part to the sums of an input; returns which rows have begun now."""
        alone = len(self.given.error) == self.context.n_rows
        rows = self.context.grad_windows[source]
        asked = BoxSet.of_rows(rows) if alone else self.given.needs(self.context.rows, source)
        self._ask(source, asked & begun, sums, accumulate=True)
        self._ask(source, asked - begun, sums, accumulate=False)
        return asked | begun

    def _ask(self, source: int, rows: BoxSet, sums: Array, *, accumulate: bool) -> None:
        out, (first, _) = self.arrays.grad_input(source), self.context.grad_windows[source]
        out[...] = unwritten(out)
        for start, stop in rows.spans if accumulate else ():
            out[start - first : stop - first] = sums[start:stop]
        before = is_unwritten(out)
        self.kernel.backward_input(source, rows.spans, accumulate=accumulate)()
        for start, stop in rows.spans:
            sums[start:stop] = out[start - first : stop - first]
            before[start - first : stop - first] = False
        assert np.array_equal(is_unwritten(out), before), "wrote outside the rows that were asked for"


def cut_points(n_rows: int) -> st.SearchStrategy[list[int]]:
    """Rows where 2 to 4 machines meet; a layer of one row has nothing to cut."""
    return st.lists(st.integers(1, max(n_rows - 1, 1)), min_size=1, max_size=3)


@st.composite
def pictures(draw: st.DrawFn) -> Shape:
    """The shape of a small picture."""
    return draw(st.integers(3, 9)), draw(st.integers(3, 8)), draw(st.integers(1, 3))


extents = st.one_of(st.integers(1, 3), st.tuples(st.integers(1, 3), st.integers(1, 3)))
activations = st.sampled_from(["linear", "relu", "sigmoid", "tanh"])
batches = st.integers(1, 9)
seeds = st.integers(0, 2**16)
