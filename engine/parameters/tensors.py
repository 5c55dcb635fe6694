"""Vectors as a safetensors file, piece by piece, from the memory where they lie.

The library's own writer copies everything twice while it holds the interpreter's lock: a shard of several GB
would need three times its memory, and its host would be silent for seconds. The library reads the files.

Source: the format as documented by huggingface/safetensors: the header's length (8 bytes, little-endian), the
header (JSON, padded with spaces to a multiple of 8), then all numbers in its order, without gaps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec
import numpy as np

from partita.engine.parameters.vector import Vector

_TYPES: Final = {np.dtype(np.float32): "F32", np.dtype(np.float64): "F64"}


def pieces_of(tensors: Mapping[str, Vector], metadata: Mapping[str, str]) -> Iterator[bytes | memoryview]:
    """Yields the bytes of a file: its header with the metadata, then each vector, without a copy.

    The vectors are contiguous and little-endian, all float32 or all float64 (for alignment).
    """
    assert len({vector.dtype for vector in tensors.values()}) <= 1
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    end = 0
    for name, vector in tensors.items():
        start, end = end, end + vector.nbytes
        header[name] = {
            "dtype": _TYPES[vector.dtype],
            "shape": list(vector.shape),
            "data_offsets": [start, end],
        }
    encoded = msgspec.json.encode(header)
    encoded += b" " * (-len(encoded) % 8)
    yield len(encoded).to_bytes(8, "little") + encoded
    for vector in tensors.values():
        if vector.size:  # an empty vector has no view of its bytes
            yield vector.data.cast("B")
