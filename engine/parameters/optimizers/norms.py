"""Norms of whole parameters, from the sums of squares of their parts.

How the sums are combined over machines is the business of the programs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, TypeAlias

import numpy as np

from partita.engine.numerics import compiled_reassociating, upcast
from partita.engine.parameters.vector import Vector

CLIP_EPSILON: Final = 1e-6  # added to a norm before dividing by it, as PyTorch does
Squares: TypeAlias = tuple[float, float]
"""Sums of squares over one parameter: of its numbers, and of their gradient."""


@compiled_reassociating
def sum_of_squares(vector: Vector) -> float:
    """Sums the squares of a vector (float32, float64, or the bits of bfloat16) in float64.

    The same vector has always the same sum, to the bit, on any number of threads; the sum over its parts may
    differ within the rounding of float64.
    """
    total = 0.0
    for i in range(vector.size):
        x = np.float64(upcast(vector[i]))
        total += x * x
    return total


def clip_factor(squares: Mapping[str, Squares], most: float) -> float:
    """Returns the factor that reduces the norm of all gradients together to `most`: 1 where it is below.

    As `torch.nn.utils.clip_grad_norm_`: min(1, most / (norm + 1e-6)). NaN where any gradient is not finite,
    so that every update reports it. Sums are added in the order of the mapping: the same factor on every
    machine.
    """
    norm = math.sqrt(sum(gradient for _, gradient in squares.values()))
    return min(1.0, most / (norm + CLIP_EPSILON)) if math.isfinite(norm) else math.nan
