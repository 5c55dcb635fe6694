"""The file in which measurements of products are kept: its form.

It lies in the user's cache folder: whoever deletes it loses a second at the next start. One process at a time
measures; others wait for its lock, and read what it found.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, Literal, TypeAlias

import msgspec

from partita.engine.numerics.kept_file import KeptFile, Versioned

VERSION: Final = 2

Library: TypeAlias = Literal["numpy", "tiles", "torch"]
"""Who multiplies: the BLAS of NumPy or of torch, or our own loops."""


class Shape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A product of matrices, `[m, k]` times `[k, n]`, and who computes it.

    Args:
        m: rows of the result.
        k: terms of each sum.
        n: columns of the result.
        layout: of both factors, "N" for one that lies in rows and "T" for one in columns.
        precision: as `Site.precision`.
        threads: that may be used.
        device: as `Site.device`.
    """

    m: int
    k: int
    n: int
    layout: str
    precision: str
    threads: int
    device: str = "cpu"

    @property
    def operations(self) -> float:
        """Multiplications and additions."""
        return 2.0 * self.m * self.k * self.n


class Measurement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long a product took.

    Args:
        machine: on which, with which libraries and settings; see `calibration.signature`.
        product: what was measured.
        seconds: that each library took.
        chosen: one of them.
    """

    machine: str
    product: Shape
    seconds: dict[Library, float]
    chosen: Library


class _Content(Versioned, frozen=True, forbid_unknown_fields=True):
    measurements: tuple[Measurement, ...]


class CalibrationFile:
    """The file at a path. Safe from several threads and processes."""

    def __init__(self, path: Path) -> None:
        self._kept = KeptFile(path, _Content, version=VERSION)

    def read(self) -> tuple[Measurement, ...]:
        """What is kept; nothing where the file is missing or cannot be used."""
        found = self._kept.read()
        return () if found is None else found.measurements

    def trouble(self) -> str | None:
        """See `KeptFile.trouble`."""
        return self._kept.trouble()

    def add(self, measurement: Measurement) -> None:
        """Keeps one more. To be called with the lock held.

        Raises:
            OSError: the file cannot be written; the old one stands.
        """
        self._kept.write(_Content(VERSION, (*self.read(), measurement)))

    def delete(self) -> bool:
        """See `KeptFile.delete`."""
        return self._kept.delete()

    def locked(self, *, wait_s: float) -> AbstractContextManager[None]:
        """See `KeptFile.locked`."""
        return self._kept.locked(wait_s=wait_s)
