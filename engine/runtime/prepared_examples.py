"""The examples of data that is prepared ahead: whole minibatches, read, transformed and converted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
from typing_extensions import override

from partita.engine.data.ahead import ReadAhead, Wanted
from partita.engine.data.dataset import DataError
from partita.engine.data.times import FeedTimes
from partita.engine.kernels.kernel import Array
from partita.engine.numerics import stored
from partita.engine.runtime.feed import Examples, node_major
from partita.engine.runtime.task import CannotGoOn
from partita.layers.box import Box


class PreparedExamples(Examples):
    """Minibatches that a `ReadAhead` makes."""

    def __init__(self, ahead: ReadAhead) -> None:
        super().__init__({})
        self._ahead: Final = ahead

    @override
    def put(
        self,
        name: str,
        box: Box,
        out: Array,
        chosen: Array | slice,
        *,
        first: int = 0,
        epoch: int = 0,
        ahead: bool = False,
    ) -> None:
        numbers = np.arange(chosen.start, chosen.stop) if isinstance(chosen, slice) else chosen
        try:
            batch = self._ahead.take(numbers, epoch, awaited=not ahead)
        except DataError as error:
            raise CannotGoOn(str(error)) from error
        transposed = node_major(batch[name][first : first + out.shape[-1]], box, out.shape)
        if out.dtype.itemsize == 2:
            out[...] = stored(transposed, out.dtype)
        else:
            np.copyto(out, transposed)

    @property
    @override
    def steps_ahead(self) -> int:
        return self._ahead.depth

    @override
    def ahead(self, following: Iterable[Wanted]) -> None:
        self._ahead.announce(following)

    @property
    @override
    def times(self) -> FeedTimes | None:
        return self._ahead.times

    @override
    def close(self) -> None:
        self._ahead.close()
