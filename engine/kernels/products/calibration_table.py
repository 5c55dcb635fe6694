"""What was measured of kernels, as a table for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.table import Table

from partita.engine.kernels.products.calibration_file import Library, Measurement

_LIBRARIES: Final[dict[Library, str]] = {"numpy": "NumPy", "torch": "torch", "tiles": "tiles"}
_OPERATIONS: Final = {"NN": "up", "TN": "errors", "NT": "gradient"}
"""Of a dense layer, by how the factors of its product lie in memory."""


def table(measurements: Sequence[Measurement]) -> Table:
    """A row for each product, in the order of the measurements."""
    found = Table("operation", "shape", "precision", title="products of matrices")
    for heading in ("threads", *(f"{name} ms" for name in _LIBRARIES.values()), "chosen"):
        found.add_column(heading, justify="right")
    for one in measurements:
        of = one.product
        found.add_row(
            _OPERATIONS.get(of.layout, of.layout),
            f"{of.m}x{of.k}x{of.n}",
            of.precision,
            str(of.threads),
            *(
                f"{one.seconds[library] * 1e3:.3f}" if library in one.seconds else ""
                for library in _LIBRARIES
            ),
            _LIBRARIES[one.chosen],
        )
    return found
