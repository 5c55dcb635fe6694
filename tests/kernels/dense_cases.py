"""A dense kernel of a whole layer in each precision."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from partita.engine.kernels import Array, Arrays, Kernel, KernelContext, ThreadPool, build
from partita.engine.numerics import upcast_array
from partita.layers import Dense
from partita.partitioner.cluster.threads import ThreadShares
from tests.kernels.cases import Case, case
from tests.kernels.matrices import stored

PRECISIONS = ["float32", "float64", "bfloat16"]


TOLERANCE = {"float32": 1e-4, "float64": 1e-10, "bfloat16": 0.06}


@dataclass(frozen=True)
class Played:
    """A dense kernel of a whole layer, its arrays, and a case of the same numbers in float64."""

    given: Case
    arrays: Arrays
    kernel: Kernel
    precision: str

    @property
    def state(self) -> Array:
        return upcast_array(self.arrays.output)

    def gradients(self, n_rows: int) -> tuple[Array, ...]:
        """Arrays for the gradients of so many rows."""
        shapes = (parameter.shape[1:] for parameter in self.arrays.parameters)
        return tuple(np.zeros((n_rows, *shape), self.kernel.gradient_dtype) for shape in shapes)


def played(layer: Dense, *shape: int, batch: int, precision: str, threads: int = 1) -> Played:
    """The kernel before its first step; what it reads are normal numbers that the precision can hold."""
    drawn = case(layer, shape, batch=batch)
    kept = [stored(numbers, precision) for numbers in (*drawn.inputs, *drawn.parameters, drawn.error)]
    exact = [upcast_array(numbers).astype(np.float64) for numbers in kept]
    given_case = Case(drawn.grid, drawn.sources, (exact[0],), tuple(exact[1:-1]), exact[-1])
    arrays = Arrays(
        inputs=(kept[0],),
        output=stored(np.full(drawn.error.shape, np.nan), precision),
        grad_output=kept[-1],
        grad_inputs=(stored(np.full(drawn.inputs[0].shape, 7.0), precision),),
        parameters=tuple(kept[1:-1]),
    )
    own, window = (0, drawn.grid.n_rows), (0, shape[0])
    context = KernelContext(drawn.grid, own, drawn.sources, (window,), (window,), batch, precision, threads)
    return Played(
        given_case,
        arrays,
        build(context, arrays, ThreadPool(threads, shares=ThreadShares(loop=0))),
        precision,
    )
