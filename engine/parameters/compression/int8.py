"""Eight bits for each number of a gradient: a whole number of steps of the tensor's largest number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from partita.engine.parameters.compression.compressor import (
    Compressor,
    GatherEncoder,
    Shape,
    bounds,
    bytes_of,
)
from partita.engine.parameters.compression.one_bit import check_scales
from partita.engine.parameters.vector import Vector

_LEVELS: Final = 127


@dataclass(frozen=True)
class Int8(Compressor):
    """Sends round(127 * g / largest) for each number, with the largest absolute value of each tensor.

    A message has a byte for each number, and `item_bytes` bytes for each tensor.

    Args:
        feedback: see `Compressor`. Its error is at most 1/254 of the largest number, so little is lost
            without.

    Raises:
        ValueError: a setting is out of range.
    """

    @override
    def n_bytes(self, shapes: Sequence[Shape], item_bytes: int, *, step: int = 0, turn: int = 0) -> int:
        return sum(map(math.prod, shapes)) + len(shapes) * item_bytes

    @override
    def encoder(self, shapes: Sequence[Shape], dtype: npt.DTypeLike) -> Int8Encoder:
        return Int8Encoder(self.state_names, shapes, dtype)


class Int8Encoder(GatherEncoder):
    """State of one range: what the rounding lost."""

    @override
    def write(self, vector: Vector, message: Vector, *, step: int) -> None:
        scales, codes = self._numbers(message)
        for i, (start, stop) in enumerate(bounds(self.shapes)):
            scales[i] = np.abs(vector[start:stop]).max(initial=0) / _LEVELS
            if 0 < scales[i] < math.inf:
                codes[start:stop] = np.clip(np.rint(vector[start:stop] / scales[i]), -_LEVELS, _LEVELS)

    @override
    def add(self, message: Vector, vector: Vector, *, step: int) -> None:
        scales, codes = self._numbers(message)
        check_scales(scales)
        for scale, (start, stop) in zip(scales, bounds(self.shapes), strict=True):
            vector[start:stop] += scale * codes[start:stop]

    def _numbers(self, message: Vector) -> tuple[Vector, npt.NDArray[np.int8]]:
        """The scales and the codes of a message."""
        n = len(self.shapes)
        return message[:n], bytes_of(message, n * self.dtype.itemsize, self.size, np.int8)
