"""What was measured of products of matrices, as a table of text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from partita.engine.profile.products import ProductMeasurement
from partita.partitioner.cluster.products import LIBRARIES, LIBRARY_NAMES, Choice
from partita.partitioner.columns import columns

_OPERATIONS: Final = {"NN": "up", "TN": "errors", "NT": "gradient"}
"""Of a dense layer, by how the factors of its product lie in memory."""


def products_text(measurements: Sequence[ProductMeasurement], *, width: int | None = None) -> str:
    """A row for each product, in the order of the measurements; on all threads, and on one."""
    several = any(one.shape.threads > 1 for one in measurements)
    heads = [f"{LIBRARY_NAMES[name]} ms" for name in LIBRARIES]
    on_one = [f"{head}, 1 thread" for head in heads] if several else []
    rows = [["operation", "shape", "precision", "threads", *heads, *on_one, "chosen"]]
    for one in measurements:
        of, seconds = one.shape, dict(one.seconds)
        counts = (of.threads, 1) if several else (of.threads,)
        rows.append(
            [
                _OPERATIONS.get(of.layout, of.layout),
                f"{of.m}x{of.k}x{of.n}",
                of.precision,
                str(of.threads),
                *(_milliseconds(seconds.get(Choice(name, n))) for n in counts for name in LIBRARIES),
                f"{LIBRARY_NAMES[one.choice.library]} x{one.choice.threads}",
            ]
        )
    return "\n".join(["products of matrices:", *columns(rows, left=(0, 1, 2), keys=2, width=width)])


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:.3f}"
