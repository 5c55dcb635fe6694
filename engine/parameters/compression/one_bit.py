"""One bit for each number of a gradient: its sign, and one size for each tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from partita.engine.parameters.compression.compressor import (
    BadMessage,
    Compressor,
    GatherEncoder,
    Shape,
    bounds,
    bytes_of,
)
from partita.engine.parameters.vector import Vector

_BITS: Final = 8


@dataclass(frozen=True)
class OneBit(Compressor):
    """Sends the sign of each number, and for each tensor the mean of the absolute values of its numbers.

    Seide and others (see `compressor`) send two means for each column; this is the form of 1-bit Adam and of
    signSGD with error feedback. Sources: Bernstein and others, ICML 2018; Tang and others, "1-bit Adam", ICML
    2021, section 3.

    A message has a bit for each number, in whole bytes, and `item_bytes` bytes for each tensor.

    Args:
        feedback: see `Compressor`.

    Raises:
        ValueError: a setting is out of range.
    """

    @override
    def n_bytes(self, shapes: Sequence[Shape], item_bytes: int, *, step: int = 0, turn: int = 0) -> int:
        return -(-sum(map(math.prod, shapes)) // _BITS) + len(shapes) * item_bytes

    @override
    def encoder(self, shapes: Sequence[Shape], dtype: npt.DTypeLike) -> OneBitEncoder:
        return OneBitEncoder(self.state_names, shapes, dtype)


class OneBitEncoder(GatherEncoder):
    """State of one range: what the signs lacked."""

    @override
    def write(self, vector: Vector, message: Vector, *, step: int) -> None:
        for i, (start, stop) in enumerate(bounds(self.shapes)):
            message[i] = np.abs(vector[start:stop]).mean(dtype=np.float64) if start < stop else 0
        bits = np.packbits(vector >= 0)
        bytes_of(message, len(self.shapes) * self.dtype.itemsize, bits.size, np.uint8)[:] = bits

    @override
    def add(self, message: Vector, vector: Vector, *, step: int) -> None:
        scales = message[: len(self.shapes)]
        check_scales(scales)
        bits = bytes_of(message, scales.nbytes, -(-self.size // _BITS), np.uint8)
        signs = np.unpackbits(bits, count=self.size)
        for scale, (start, stop) in zip(scales, bounds(self.shapes), strict=True):
            vector[start:stop] += np.where(signs[start:stop], scale, -scale)


def check_scales(scales: Vector) -> None:
    """Raises BadMessage where a scale is below 0; one that is not finite is found by the update."""
    if np.any(scales < 0):
        raise BadMessage(f"its scales begin with {scales.min()}; none is below 0")
