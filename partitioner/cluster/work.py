"""Work of a kernel: its operations, its bytes, and a signature.

Two kernels of the same signature do the same on arrays of the same sizes, in whatever network and of whatever
machine's rows, so a measurement of one holds for the other. Kernels of a *family* have the same signature but
for the number of rows computed and read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

REFERENCE_FLOPS_PER_S: Final = 80e9
REFERENCE_BYTES_PER_S: Final = 10e9
"""Rates of the reference machine: guesses for a server's core of the 2020s."""


@dataclass(frozen=True, slots=True)
class Work:
    """Work of a kernel.

    Args:
        family: the signature without its size: `up Dense ...; batch 128 float32 cpu x1`.
        extents: its size: rows computed and read, or numbers.
        operations: floating-point operations, in equivalents of a matrix product.
        weight_bytes: bytes of weights that it reads.
        n_bytes: other bytes that it reads and writes.
        threads: kernel threads that it may use.
    """

    family: str
    extents: str
    operations: float
    weight_bytes: float
    n_bytes: float
    threads: int

    @property
    def signature(self) -> str:
        """Family and extents, as `FAMILY | EXTENTS`."""
        return f"{self.family} | {self.extents}"

    @property
    def reference_s(self) -> float:
        """Seconds on the reference machine."""
        return self.seconds(REFERENCE_FLOPS_PER_S, REFERENCE_BYTES_PER_S)

    def seconds(self, flops_per_s: float, bytes_per_s: float) -> float:
        """Seconds at these rates; `flops_per_s` is the rate of one thread."""
        arithmetic_s = self.operations / (flops_per_s * self.threads)
        # Reading overlaps arithmetic, the less the closer the two are: measured, four micro-batches of a
        # minibatch of 128 take a fifth more than the whole, eight two thirds.
        return math.hypot(arithmetic_s, self.weight_bytes / bytes_per_s) + self.n_bytes / bytes_per_s


def family_of(signature: str) -> str:
    """Returns a signature without its extents."""
    return signature.rpartition(" | ")[0]


def kind_of(family: str) -> str:
    """A family's first two words: `up Dense`."""
    return " ".join(family.split(" ", 2)[:2])
