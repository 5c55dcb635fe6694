"""Updates of parameters fused with their gradients: block by block, while a block's gradient is in cache.

A gradient is as large as the parameters. Written whole and read again by the update, it costs two passes
over memory and as much of it as the parameters themselves; in blocks it never leaves the cache. Where a
minibatch comes in several micro-batches, a block adds up all of them before the next block begins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, Protocol, TypeAlias

import numpy as np

from partita.engine.kernels.calls import sequence
from partita.engine.kernels.kernel import Array, Call, Kernel
from partita.engine.numerics import RowGradient
from partita.engine.parameters.optimizers import Squares
from partita.engine.parameters.vector import Vector
from partita.engine.runtime.regularisation import AddTerm, Regularisation
from partita.partitioner.assign.parameter_slice import ParameterSlice
from partita.partitioner.cluster.threads import UPDATE_OPERATIONS
from partita.partitioner.predict.work import GRADIENT_BLOCK_BYTES


class Apply(Protocol):
    """The prepared update of a range of parameters by its gradient."""

    def __call__(self, factor: float, later: int = 0) -> bool:
        """Updates the range by its gradient times a factor; returns whether the gradient was finite.

        `later` is the number of other updates in the same step before this one.
        """


class Updates(Protocol):
    """A driver's use of gradients.

    Attributes:
        takes_rows: whether it calls `bind_rows` with the gradients of sparse parameters; else they are whole.
    """

    takes_rows: bool

    def bind(self, span: slice, gradient: Vector) -> Apply:
        """Prepares the update of a range of the machine's parameters by a gradient of its size."""

    def bind_rows(self, span: slice, gradient: RowGradient) -> Apply:
        """Prepares the update of a range, a table, by the rows that its gradient has at every call."""

    def bind_squares(self, span: slice, gradient: Vector) -> Callable[[], Any]:
        """Prepares the sum of squares of a gradient, or of what the optimizer will make of it."""

    def factors(self, squares: Mapping[str, Squares]) -> dict[str, float]:
        """The factor for the gradient of each parameter, by norms over all machines."""


Scratch: TypeAlias = Callable[[int, Sequence[int], np.dtype[Any]], Array]
"""Makes an array at an offset (bytes) in memory that all layers of a machine share, one at a time."""


class FusedUpdate:
    """The update of one layer's parameters, block by block."""

    def __init__(
        self,
        kernels: Sequence[Kernel],
        held: Sequence[ParameterSlice],
        *,
        start: int,
        by_blocks: bool = True,
        takes_rows: bool = False,
    ) -> None:
        """Decides the blocks: each takes `GRADIENT_BLOCK_BYTES` for each thread, but at least a row.

        Where the kernel can, each thread computes and applies blocks of its own, which stay in its cache.

        Args:
            kernels: of the layer, one for each micro-batch of the minibatch.
            held: the machine's slices of the parameters, or whole shared ones.
            start: where the layer's range in the machine's parameters begins.
            by_blocks: whether blocks are worth their calls; else all rows are one.
            takes_rows: of the driver's `Updates`.
        """
        self._kernels, self._kernel, self._start, self._held = kernels, kernels[0], start, held
        self._takes_rows = takes_rows and self._kernel.writes_rows
        first, stop = held[0].box[0]
        context, rows, size = self._kernel.context, stop - first, sum(each.size for each in held)
        self._apart = by_blocks and all(kernel.gradient_by_threads for kernel in kernels)
        self._lanes, block = 1, rows
        if self._apart:
            operations = size * (2.0 * context.batch + UPDATE_OPERATIONS)
            most = max(min(context.threads, rows), 1)
            self._lanes = self._kernel.pool.shares.count("gradient", operations, most=most)
        if self._kernel.gradient_by_rows and by_blocks:
            most = GRADIENT_BLOCK_BYTES * (1 if self._apart else context.threads)
            n_blocks = -(-size * self._kernel.gradient_dtype.itemsize // (most * self._lanes)) * self._lanes
            block = max(rows // n_blocks, 1)
        self._blocks = [(row, min(row + block, stop)) for row in range(first, stop, block)]

    @property
    def scratch_bytes(self) -> int:
        """Bytes of the gradients of the largest block, for each thread that computes some."""
        return self._lanes * self._block_bytes

    @property
    def _block_bytes(self) -> int:
        return max(self._offsets(rows)[-1] for rows in self._blocks)

    def call(
        self, scratch: Scratch, updates: Updates, report_nonfinite: Call, terms: Regularisation
    ) -> Callable[[int], None]:
        """Prepares every block.

        Args:
            scratch: memory of at least `scratch_bytes`.
            updates: the driver's.
            report_nonfinite: called when a gradient was not finite.
            terms: adds those of regularisers.

        Returns:
            The update, after so many other minibatches of the same step.
        """
        steps, n = [], len(self._blocks)
        with ExitStack() as stack:
            for kernel in self._kernels if self._apart else ():
                stack.enter_context(kernel.on_one_thread())
            for k, rows in enumerate(self._blocks):
                own = partial(_from, scratch, k * self._lanes // n * self._block_bytes)
                steps.append(self._prepared(rows, own, updates, terms))
        cuts = [-(-n * lane // self._lanes) for lane in range(self._lanes + 1)]
        finite = [True] * n

        def work(start: int, stop: int) -> None:
            for k in range(cuts[start], cuts[stop]):
                gradient, added, apply = steps[k]
                gradient()
                for add in added:
                    add(later_of[0])
                finite[k] = apply(later_of[0])

        later_of, in_order = [0], any(added for _, added, _ in steps)

        def call(later: int) -> None:
            later_of[0] = later
            if in_order or self._lanes == 1:  # terms are added up in the order of the blocks
                work(0, self._lanes)
            else:
                self._kernel.pool.split(0, self._lanes, work)
            if not all(finite):
                report_nonfinite()

        return call

    def whole(self, out: Sequence[Array], *, accumulate: bool = False) -> Call:
        """Prepares the gradient of all rows, block by block too if there are several micro-batches.

        Args:
            out: for each parameter, the array for all rows.
            accumulate: whether the gradient is added to the arrays.
        """
        if len(self._kernels) == 1 or not self._kernel.gradient_by_rows:
            return self._gradient(out, None, accumulate=accumulate)
        parts = ((self._part_of(out, rows), rows) for rows in self._blocks)
        return sequence(*(self._gradient(*part, accumulate=accumulate) for part in parts))

    def _part_of(self, out: Sequence[Array], rows: tuple[int, int]) -> list[Array]:
        found = []
        for array, held in zip(out, self._held, strict=False):
            part, before = held.part(rows), held.before(rows[0])
            found.append(array.reshape(-1)[before : before + part.size].reshape(part.shape))
        return found

    def _gradient(
        self, out: Sequence[Array], rows: tuple[int, int] | None, *, accumulate: bool = False
    ) -> Call:
        """The gradient of some rows (None: all), summed over the micro-batches in order."""
        asked = rows if self._kernel.gradient_by_rows else None
        return sequence(
            *(
                kernel.backward_parameters(out, asked, accumulate=accumulate or n > 0)
                for n, kernel in enumerate(self._kernels)
            )
        )

    def _prepared(
        self, rows: tuple[int, int], scratch: Scratch, updates: Updates, terms: Regularisation
    ) -> tuple[Call, list[AddTerm], Callable[[int], bool]]:
        dtype, begin = self._kernel.gradient_dtype, self._start
        out: list[Any] = []
        added: list[AddTerm | None] = []
        applies: list[list[Apply]] = [[] for _ in range(self._kernel.pool.threads)]
        for held, offset in zip(self._held, self._offsets(rows), strict=False):
            part, start = held.part(rows), begin + held.before(rows[0])
            begin += held.size
            if self._is_by_rows(held):
                out.append(RowGradient(held.shape[-1], dtype))
                applies[0].append(updates.bind_rows(slice(start, start + part.size), out[-1]))
                continue
            gradient = scratch(offset, part.shape, dtype)
            out.append(gradient)
            learns = part.size and (held.parameter.trainable or held.parameter.averaged)
            whole = slice(start, start + part.size)
            added.append(terms.bind(held.parameter, whole, gradient.reshape(-1)))
            threads = self._threads_for(part.size, len(applies))
            for thread, share in enumerate(_shares(part.size, threads) if learns else ()):
                span = slice(start + share.start, start + share.stop)
                applies[thread].append(updates.bind(span, gradient.reshape(-1)[share]))
        found = [add for add in added if add is not None]
        return self._gradient(out, rows), found, self._together([apply for apply in applies if apply])

    def _threads_for(self, numbers: int, most: int) -> int:
        """The threads that update so many numbers."""
        shares, own = self._kernel.pool.shares, self._kernel.gradient_shares
        written = min(own, shares.count("gradient", numbers * UPDATE_OPERATIONS, most=most))
        return max(shares.count("numbers", numbers, most=most), written)

    def _together(self, applies: list[list[Apply]]) -> Callable[[int], bool]:
        """The updates of a block; each thread makes those of its share."""
        finite, pool = [True] * len(applies), self._kernel.pool

        def call(later: int) -> bool:
            def work(start: int, stop: int) -> None:
                for thread in range(start, stop):
                    finite[thread] = True
                    for apply in applies[thread]:  # every one of them, whatever the others say
                        finite[thread] &= apply(1.0, later)

            pool.split(0, len(applies), work)
            return all(finite)

        return call

    def _offsets(self, rows: tuple[int, int]) -> list[int]:
        """The offsets of the parameters' gradients in the scratch, and the end, in bytes; aligned to 64."""
        item_bytes = self._kernel.gradient_dtype.itemsize
        sizes = (0 if self._is_by_rows(held) else held.part(rows).size for held in self._held)
        return list(accumulate((-(-size * item_bytes // 64) * 64 for size in sizes), initial=0))

    def _is_by_rows(self, held: ParameterSlice) -> bool:
        """Returns whether the gradient of a parameter is that of some rows."""
        return self._takes_rows and held.parameter.sparse and held.parameter.trainable


def _from(scratch: Scratch, base: int, offset: int, shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
    """An array at an offset from a base, in scratch."""
    return scratch(base + offset, shape, dtype)


def _shares(n: int, threads: int) -> list[slice]:
    """Nearly equal ranges of n numbers for so many threads."""
    cuts = [n * thread // threads // 16 * 16 for thread in range(threads)]
    return [slice(start, stop) for start, stop in pairwise([*cuts, n])]
