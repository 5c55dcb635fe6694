"""Compressors by their names on the command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from partita.engine.parameters.compression.compressor import Compressor
from partita.engine.parameters.compression.int8 import Int8
from partita.engine.parameters.compression.one_bit import OneBit
from partita.engine.parameters.compression.power_sgd import PowerSGD
from partita.engine.parameters.compression.top_k import TopK

COMPRESSORS: Final[Mapping[str, type]] = {
    "none": Compressor,
    "top-k": TopK,
    "one-bit": OneBit,
    "int8": Int8,
    "power-sgd": PowerSGD,
}
"""Compressors by their names; "none" makes None."""

_SHARE: Final = 0.01
_RANK: Final = 2


def make_compressor(
    name: str, share: float | None = None, rank: int | None = None, *, feedback: bool = True
) -> Compressor | None:
    """Creates the compressor of a name: top-k with a share of 0.01, PowerSGD with rank 2 if none is given.

    Raises:
        ValueError: the compressor has no such setting, or it is out of range.
    """
    for setting, value, owner in (("share", share, "top-k"), ("rank", rank, "power-sgd")):
        if value is not None and name != owner:
            raise ValueError(f"the compressor {name} has no {setting}; leave it out, or use {owner}")
    match name:
        case "none":
            return None
        case "top-k":
            return TopK(_SHARE if share is None else share, feedback=feedback)
        case "power-sgd":
            return PowerSGD(_RANK if rank is None else rank, feedback=feedback)
    found: Compressor = COMPRESSORS[name](feedback=feedback)
    return found
