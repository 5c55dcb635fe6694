"""Compressors with error feedback as their papers have them, by NumPy in float64, without messages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from partita.engine.parameters.compression import Compressor, OneBit, TopK

Array: TypeAlias = np.ndarray[Any, Any]


class DenseCompressor:
    """What one receiver gets from one sender."""

    def __init__(self, compress: Compressor, tensors: Sequence[slice | Array], size: int) -> None:
        self.compress, self.tensors = compress, tensors
        self.u, self.left = np.zeros(size), np.zeros(size)

    def sent(self, g: Array, step: int) -> Array:
        """Returns what the message of a step means; what it lacks is kept."""
        compress: Any = self.compress
        if isinstance(compress, TopK):
            if compress.clip_norm is not None:
                g = g * min(1.0, compress.clip_norm / float(np.linalg.norm(g)))
            self.u = compress.momentum * self.u + g
            g = self.u
        wanted = g + self.left
        sent = np.zeros_like(wanted)
        for one in self.tensors:
            sent[one] = self._tensor(wanted[one], step)
        if compress.feedback:
            self.left = wanted - sent
        self.u = np.where(sent != 0, 0.0, self.u)
        return sent

    def _tensor(self, v: Array, step: int) -> Array:
        compress: Any = self.compress
        if isinstance(compress, TopK):
            k = max(1, math.ceil(compress.share_at(step) * v.size))
            return np.where(np.abs(v) >= np.sort(np.abs(v))[-k], v, 0.0)
        if isinstance(compress, OneBit):
            return np.where(v >= 0, 1.0, -1.0) * np.abs(v).mean()
        level = np.abs(v).max() / 127
        return np.rint(v / level) * level if level else v
