"""What was measured of products of matrices, as a table for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.table import Table

from partita.engine.profile.products import ProductMeasurement
from partita.partitioner.products import LIBRARIES, LIBRARY_NAMES, Choice

_OPERATIONS: Final = {"NN": "up", "TN": "errors", "NT": "gradient"}
"""Of a dense layer, by how the factors of its product lie in memory."""


def table(measurements: Sequence[ProductMeasurement]) -> Table:
    """A row for each product, in the order of the measurements; on all threads, and on one."""
    found = Table("operation", "shape", "precision", title="products of matrices")
    several = any(one.shape.threads > 1 for one in measurements)
    for heading in ("threads", *(f"{LIBRARY_NAMES[name]} ms" for name in LIBRARIES)):
        found.add_column(heading, justify="right")
    if several:
        for name in LIBRARIES:
            found.add_column(f"{LIBRARY_NAMES[name]} ms, 1 thread", justify="right")
    found.add_column("chosen", justify="right")
    for one in measurements:
        of, seconds = one.shape, dict(one.seconds)
        counts = (of.threads, 1) if several else (of.threads,)
        found.add_row(
            _OPERATIONS.get(of.layout, of.layout),
            f"{of.m}x{of.k}x{of.n}",
            of.precision,
            str(of.threads),
            *(_milliseconds(seconds.get(Choice(name, n))) for n in counts for name in LIBRARIES),
            f"{LIBRARY_NAMES[one.choice.library]} x{one.choice.threads}",
        )
    return found


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:.3f}"
