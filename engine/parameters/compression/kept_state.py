"""The state that one replica alone has, in a checkpoint: that of its encoders, by names that tell it apart.

Between exchanges it may also have parameters and a state of the optimizer of its own. What replicas have not
sent is a share of one sum. A run that goes on with as many replicas gives
each its own state again; with another number each gets an equal share of the sum, so that nothing is lost or
sent twice.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Final

import numpy as np

from partita.engine.parameters.compression.compressor import Compressor
from partita.engine.parameters.vector import Vector

_NAME: Final = re.compile(r"unsent_(\w+)_(\d{1,9})", flags=re.ASCII)
_OWN: Final = re.compile(r"own_\w+_\d{1,9}", flags=re.ASCII)

Gather = Callable[[str], Vector]
"""Returns the vector of a name from a checkpoint, `[n]`."""


def name_of(vector: str, replica: int) -> str:
    """Returns the name of a state vector of a replica in a checkpoint: "unsent_residual_1"."""
    return f"unsent_{vector}_{replica}"


def own_name(vector: str, replica: int) -> str:
    """Returns the name of another vector that a replica alone has: "own_parameters_1"."""
    return f"own_{vector}_{replica}"


def own_names(names: Iterable[str]) -> frozenset[str]:
    """Returns those of the names in a checkpoint that are of one replica alone."""
    return frozenset(name for name in names if _NAME.fullmatch(name) or _OWN.fullmatch(name))


def state_in(
    compress: Compressor,
    names: Iterable[str],
    gather: Gather,
    *,
    replica: int,
    replicas: int,
    same_cut: Callable[[str], bool],
    kind: str = "",
) -> dict[str, Vector]:
    """Returns the state with which a replica goes on; a vector that no replica has saved is left out.

    Args:
        compress: the compressor that goes on.
        names: of the vectors in the checkpoint.
        gather: reads one of them.
        replica: that goes on.
        replicas: that go on in all.
        same_cut: says whether a vector was saved in the ranges in which `gather` returns it.
        kind: of what is compressed, see `Driver.unsent`.
    """
    known, found = set(names), {}
    for vector in compress.state_names:
        matches = map(_NAME.fullmatch, known)
        saved = sorted((int(m[2]), m[0]) for m in matches if m and m[1] == kind + vector)
        if not saved:
            continue
        if vector in compress.shared_state:
            if same_cut(saved[0][1]):
                found[vector] = gather(saved[0][1])
        elif len(saved) == replicas and saved[-1][0] == replicas - 1:
            found[vector] = gather(name_of(kind + vector, replica))
        else:
            total = sum(gather(name).astype(np.float64) for _, name in saved)
            found[vector] = np.asarray(total / replicas)
    return found
