"""The names of a module of PyTorch in a manifest, so that a checkpoint alone becomes its state dict.

Numbers that no step changes, such as masks and counters, stand in the manifest, compressed. Where these are
too many, a manifest has no names of the module, and its network is needed to read it under these.
"""

from __future__ import annotations

import base64
import binascii
import math
import zlib
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

import msgspec
import numpy as np

from partita.engine.parameters.formats import CheckpointError
from partita.layers.module_state import ModuleState, StateEntry

MOST_TEXT: Final = 1 << 24
"""Characters of all constants together that a manifest may have."""
MOST_BYTES: Final = 1 << 30
"""Bytes that one constant may have when it is read."""


class ModuleEntry(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """An entry of the module's state dict; for the attributes see `StateEntry`.

    Attributes:
        kind: NumPy's name of the type of the constant; "" where there is none.
        constant: its bytes, compressed by zlib, in base64.
        versions: of the modules in which the entry lies; () in manifests that have none.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    same_as: str
    parameter: str = ""
    order: tuple[int, ...] = ()
    kind: str = ""
    constant: str = ""
    versions: tuple[int, ...] = ()


def module_entries(state: ModuleState) -> tuple[ModuleEntry, ...]:
    """Returns the entries of a state dict for a manifest; none where their constants are too large for it."""
    found = tuple(_entry(one) for one in state)
    return found if sum(len(one.constant) for one in found) <= MOST_TEXT else ()


def _entry(one: StateEntry) -> ModuleEntry:
    names = one.name, tuple(one.shape), one.dtype, one.same_as, one.parameter, tuple(one.order)
    if one.constant is None:
        return ModuleEntry(*names, versions=one.versions)
    packed = zlib.compress(np.ascontiguousarray(one.constant).tobytes())
    return ModuleEntry(*names, str(one.constant.dtype), base64.b64encode(packed).decode(), one.versions)


def state_entries(entries: Iterable[ModuleEntry], parameters: Iterable[str]) -> ModuleState:
    """Returns the entries of a state dict from a manifest.

    Args:
        entries: of the manifest.
        parameters: names of those that the checkpoint holds.

    Raises:
        CheckpointError: an entry is of no parameter, or its constant cannot be read.
    """
    known, found = set(parameters), list[StateEntry]()
    for one in entries:
        if one.parameter and one.parameter not in known:
            raise CheckpointError(f"its manifest has {one.name!r} from {one.parameter!r}, which is not there")
        names = one.name, one.shape, one.dtype, one.same_as, one.parameter, one.order
        state = StateEntry(*names, versions=one.versions)
        found.append(_with_constant(state, one))
    return tuple(found)


def _with_constant(state: StateEntry, one: ModuleEntry) -> StateEntry:
    if not one.kind:
        return state
    try:
        dtype = np.dtype(one.kind)
        size = math.prod(one.shape) * dtype.itemsize
        if dtype.hasobject or size > MOST_BYTES:
            raise ValueError(f"it has {size} bytes of {one.kind}")
        data = zlib.decompressobj().decompress(base64.b64decode(one.constant, validate=True), size + 1)
        array = np.frombuffer(data, dtype).reshape(one.shape).copy()
    except (ValueError, TypeError, zlib.error, binascii.Error) as error:
        raise CheckpointError(f"the numbers of {one.name!r} in its manifest are damaged ({error})") from error
    return replace(state, constant=array)
