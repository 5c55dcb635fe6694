"""Prepared products of two matrices: by NumPy's BLAS, or by torch or our own tiles where that is faster
(`calibration`).

bfloat16 is torch's alone: products of its numbers are summed in float32 and rounded once. Torch is imported
when it is needed, and not before: that takes seconds and some 200 MB.
"""

from __future__ import annotations

from functools import partial
from typing import Final, get_args

import numpy as np
from threadpoolctl import threadpool_limits

from partita.engine.kernels.kernel import Array, Call
from partita.engine.kernels.parallel import Team
from partita.engine.kernels.products import calibration, tiles
from partita.engine.kernels.products.calibration_file import Library, Shape
from partita.engine.kernels.tiles.scratch import Scratch

_LIBRARIES: Final[tuple[Library, ...]] = get_args(Library)
_WORTH_A_CHOICE: Final = 2e6
"""Operations. Below, a call takes some 20 microseconds, and what others' calls cost more by themselves eats
what their products could save."""

_REST_S: Final = 0.15
"""After a product on two threads a process went on to use a core, for 100 ms if it was NumPy's (OpenBLAS),
10 ms if torch's, and not at all if it was of tiles: threads wait for the next one and take cores from others.
Measured once, on one machine."""


def product(
    a: Array, b: Array, out: Array, *, team: Team, scratch: Scratch | None = None, accumulate: bool = False
) -> Call:
    """A call that writes `a @ b` into `out`, whatever the arrays hold by then.

    Args:
        a: `[m, k]`, float32, float64, or bfloat16 as uint16; in rows or in columns (a transposed view), which
            may lie apart.
        b: `[k, n]`, likewise.
        out: `[m, n]`, of the same type, C-contiguous.
        team: who computes it, if it is not BLAS, which takes as many threads.
        scratch: as for `tiles.product`; also where a product lies before it is added.
        accumulate: adds it to what is there. NumPy's BLAS cannot, so the product lies beside it first.
    """
    assert a.dtype == b.dtype == out.dtype and out.flags.c_contiguous, f"{a.dtype} {b.dtype} {out.dtype}"
    assert a.shape[1] == b.shape[0] and out.shape == (a.shape[0], b.shape[1]), (
        f"{a.shape} {b.shape} {out.shape}"
    )
    if a.dtype == np.uint16:
        return _by_torch(a, b, out, threads=team.threads, accumulate=accumulate)
    shape = _shape(a, b, team.threads)
    if shape.operations < _WORTH_A_CHOICE:
        return _by_numpy(a, b, out, scratch=scratch, accumulate=accumulate)
    library = calibration.choose(shape, _seconds)
    return _by(library, a, b, out, team=team, scratch=scratch, accumulate=accumulate)


def _by(
    library: Library,
    a: Array,
    b: Array,
    out: Array,
    *,
    team: Team,
    scratch: Scratch | None = None,
    accumulate: bool = False,
) -> Call:
    if library == "torch":
        return _by_torch(a, b, out, threads=team.threads, accumulate=accumulate)
    if library == "tiles":
        return tiles.product(a, b, out, team=team, scratch=scratch, accumulate=accumulate)
    return _by_numpy(a, b, out, scratch=scratch, accumulate=accumulate)


def _by_numpy(
    a: Array, b: Array, out: Array, *, scratch: Scratch | None = None, accumulate: bool = False
) -> Call:
    if not accumulate:
        return partial(np.matmul, a, b, out)  # not np.dot, which copies a matrix whose rows lie apart
    room = scratch or Scratch(1, out.dtype)
    room.reserve(out.size)

    def add() -> None:
        with room.lent(out.size) as flat:
            term = flat.reshape(out.shape)
            np.matmul(a, b, term)
            np.add(out, term, out)

    return add


def _by_torch(a: Array, b: Array, out: Array, *, threads: int, accumulate: bool = False) -> Call:
    from partita.engine.kernels.products import torch_products  # here, because it imports torch

    return torch_products.product(a, b, out, threads=threads, accumulate=accumulate)


def _shape(a: Array, b: Array, threads: int) -> Shape:
    layout = "".join("N" if matrix.strides[1] == matrix.itemsize else "T" for matrix in (a, b))
    return Shape(
        m=a.shape[0], k=a.shape[1], n=b.shape[1], layout=layout, precision=a.dtype.name, threads=threads
    )


def _seconds(shape: Shape) -> dict[Library, float] | None:
    """That each library takes, with arrays of their own; None where the machine is too busy to tell."""
    a = _filled(shape.m, shape.k, shape.layout[0], shape.precision)
    b = _filled(shape.k, shape.n, shape.layout[1], shape.precision)
    out, team = np.empty((shape.m, shape.n), a.dtype), Team(shape.threads)
    try:
        with threadpool_limits(limits=shape.threads, user_api="blas"):
            calls = [_by(library, a, b, out, team=team) for library in _LIBRARIES]
            found = calibration.least_seconds(calls, rest_s=_REST_S if shape.threads > 1 else 0.0)
    finally:
        team.close()
    return None if found is None else dict(zip(_LIBRARIES, found, strict=True))


def _filled(rows: int, columns: int, layout: str, precision: str) -> Array:
    """Ordinary numbers, drawn quickly: a few, again and again."""
    drawn = np.random.default_rng(0).standard_normal(4093).astype(precision)
    matrix = np.resize(drawn, (rows, columns) if layout == "N" else (columns, rows))
    return matrix if layout == "N" else matrix.T
