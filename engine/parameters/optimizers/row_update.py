"""Updates of some rows of a table by their gradients, as an update of the whole table would change them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from partita.engine.numerics.row_gradient import Rows, Values
from partita.engine.parameters.optimizers.optimizer import Optimizer, UpdateContext
from partita.engine.parameters.optimizers.update_loop import Stored


def update_rows(
    optimizer: Optimizer,
    values: Values,
    rows: Rows,
    gradient: Values,
    state: Mapping[str, Values],
    context: UpdateContext,
    *,
    copy: Stored | None = None,
    keep_state: bool = True,
) -> bool:
    """Updates rows of a table, and no others; the time depends on their number alone.

    Args:
        optimizer: `supports_sparse`.
        values: `[n, width]`, float32 or float64; changed in place.
        rows: int64 `[k]`, each once, of the table.
        gradient: `[k, width]`.
        state: of the optimizer, like the values; changed in place.
        context: of the update.
        copy: `[n, width]` of uint16: receives the new values, rounded to bfloat16.
        keep_state: whether the state changes, too.

    Returns:
        Whether every (scaled) gradient was finite.
    """
    before = {} if keep_state else {name: np.take(table, rows, axis=0) for name, table in state.items()}
    flat = {name: table.reshape(-1) for name, table in state.items()}
    narrow = None if copy is None else copy.reshape(-1)
    given = np.ascontiguousarray(gradient)
    finite = optimizer.update_rows(values.reshape(-1), rows, given, flat, context, copy=narrow)
    for name, saved in before.items():
        state[name][rows] = saved
    return finite
