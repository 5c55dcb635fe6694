"""Array type of parameters, gradients and optimizer state."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Vector: TypeAlias = npt.NDArray[np.floating[Any]]
"""float32 or float64, C-contiguous: `[n]`, or a whole parameter in its shape."""
