"""What was measured of kernels, as a table for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.table import Table

from partita.engine.kernels.calibration_file import Measurement

_OPERATIONS: Final = {"NN": "up", "TN": "errors", "NT": "gradient"}
"""Of a dense layer, by how the factors of its product lie in memory."""


def table(measurements: Sequence[Measurement]) -> Table:
    """A row for each product, in the order of the measurements."""
    found = Table("operation", "shape", "precision", title="products of matrices")
    for heading in ("threads", "NumPy ms", "torch ms", "chosen"):
        found.add_column(heading, justify="right")
    for one in measurements:
        of = one.product
        found.add_row(
            _OPERATIONS.get(of.layout, of.layout),
            f"{of.m}x{of.k}x{of.n}",
            of.precision,
            str(of.threads),
            f"{one.numpy_s * 1e3:.3f}",
            f"{one.torch_s * 1e3:.3f}",
            {"numpy": "NumPy", "torch": "torch"}[one.chosen],
        )
    return found
