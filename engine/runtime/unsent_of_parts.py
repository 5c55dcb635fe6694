"""Vectors of a shard's file that have what compressed pushes of parts lacked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from partita.engine.parameters.compression.kept_state import name_of
from partita.engine.parameters.slots import Table, outside
from partita.engine.parameters.snapshot import ShardSnapshot
from partita.engine.parameters.vector import Vector
from partita.engine.protocol.events import Persist
from partita.engine.protocol.names import host_and_fragment, part_indices
from partita.engine.protocol.shard_effects import KeepUnsent
from partita.engine.transport.payload import Payload


class UnsentOfParts:
    """Numbers of one file that parts have sent, beside those of the shard.

    Attributes:
        order: of the file.
    """

    def __init__(
        self, order: Persist, names: Sequence[str], size: int, dtype: npt.DTypeLike, tables: Sequence[Table]
    ) -> None:
        """Has nothing of any part.

        Args:
            order: of the file.
            names: of the vectors that a part has kept, as the file has them.
            size: numbers of the shard.
            dtype: of its numbers.
            tables: sparse ones, of which nothing is kept.
        """
        self.order: Final = order
        self._names, self._size, self._dtype, self._tables = tuple(names), size, np.dtype(dtype), tables
        self._vectors: dict[str, Vector] = {}

    def take(self, effect: KeepUnsent) -> None:
        """Takes the vectors of a part for a range, one after another in the payload, and releases it."""
        assert isinstance(effect.payload, Payload)
        replica, _ = part_indices(host_and_fragment(effect.stream)[0]) or (0, 0)
        found = np.empty(effect.payload.n_bytes // self._dtype.itemsize, self._dtype)
        effect.payload.copy_into(found)
        effect.payload.release()
        for name, numbers in zip(self._names, np.split(found, len(self._names)), strict=True):
            vector = self._vectors.setdefault(name_of(name, replica), np.zeros(self._size, self._dtype))
            at = 0
            for part in outside(self._tables, effect.span.start, effect.span.stop):
                vector[part] = numbers[at : at + part.stop - part.start]
                at += part.stop - part.start

    def added_to(self, snapshot: ShardSnapshot) -> ShardSnapshot:
        """Returns a snapshot of the shard with these vectors."""
        return replace(snapshot, state={**snapshot.state, **self._vectors})
