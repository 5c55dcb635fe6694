"""Rows that vectors move: every number arrives, and nothing beside them is written."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from partita.engine.kernels.tiles.runs import Rows, add_rows, add_terms, copy_rows
from partita.engine.numerics import compiled

Numbers = npt.NDArray[np.float32]


@compiled
def _all(out: Numbers, x: Numbers, terms: Numbers, rows: int, lanes: int, apart: int) -> None:
    """The three functions, one behind the other, from rows side by side into rows that lie apart."""
    size = rows * apart
    copy_rows(out, Rows(1, apart), x, Rows(0, lanes), terms, 0, rows, lanes)
    add_terms(out, Rows(size + 1, apart), x, Rows(0, lanes), terms, 2, rows, lanes)
    add_rows(out, Rows(2 * size + 1, apart), x, Rows(0, lanes), terms, 0, rows, lanes)


def test_rows_of_any_length_are_copied_and_added_to() -> None:
    draw, rows = np.random.default_rng(0), 3
    terms = draw.random(rows + 2, np.float32)
    for lanes in (0, 1, 4, 5, 7, 8, 9, 15, 16, 17, 24, 29, 32, 45):
        x, before = draw.random((rows, lanes), np.float32), draw.random((3, rows, lanes + 2), np.float32)
        out = before.copy()
        _all(out.reshape(-1), x.reshape(-1), terms, rows, lanes, lanes + 2)
        wanted = before.copy()
        wanted[:, :, 1:-1] = x, x + terms[2:, None], before[2, :, 1:-1] + x
        np.testing.assert_array_equal(out, wanted, err_msg=f"{lanes} numbers")
