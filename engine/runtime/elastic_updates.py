"""Updates of a part under elastic averaging: it keeps parameters of its own, which shards only draw.

Between two steps the shards' parameters may be in the place of the part's own: from the arrival of values
until the next step begins. Then a push can move both, and a validation evaluates what the shards have.

Source: Zhang, Choromanska and LeCun, "Deep learning with elastic averaging SGD", 2015, algorithm 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from partita.engine.parameters.optimizers import Optimizer
from partita.engine.runtime.buffers import Vectors
from partita.engine.runtime.changes import PushedChanges
from partita.engine.runtime.push_messages import PushMessages


class ElasticUpdates(PushedChanges):
    """Updates the part's own parameters, and pushes a part of their difference from the shards'.

    With x the part's parameters and c the shards', as they have arrived, a push is moves_by * (c - x): the
    part adds it to x, and the shards subtract it from theirs. While c is in the place of the parameters, x is
    kept beside.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        vectors: Vectors,
        *,
        moves_by: float,
        memory: Callable[[int], npt.NDArray[np.uint8] | None] = lambda n_bytes: None,
        messages: PushMessages | None = None,
    ) -> None:
        """Begins without parameters of its own: the first are those of the shards.

        Args:
            optimizer: updates the part's own parameters.
            vectors: of the part.
            moves_by: alpha, above 0 and at most 1.
            memory: see `PushedChanges`.
            messages: see `PushedChanges`. Both move by what a message means, so what it lacks remains in
                their difference.
        """
        super().__init__(optimizer, vectors, memory=memory, messages=messages)
        self._moves_by: Final = moves_by
        self._own: Final[set[tuple[int, int]]] = set()  # ranges in which it has parameters of its own
        self._aside: Final[set[tuple[int, int]]] = set()  # of these, those in whose place are the shards'

    @override
    def advance(self, updates: int | None = None, scale: float = 1.0) -> None:
        super().advance(updates, scale)
        for start, stop in self._aside:
            self._vectors.parameters[start:stop] = self._kept[start:stop]
            self._changed(slice(start, stop))
        self._aside.clear()

    @override
    def keep(self, span: slice) -> None:
        """Keeps the part's own parameters of a range, in which those of the shards arrive next."""
        place = span.start, span.stop
        if place in self._own and place not in self._aside:
            self._kept[span] = self._vectors.parameters[span]
            self._aside.add(place)

    @override
    def install(self, span: slice, unheld: Sequence[str]) -> None:
        """Adds the movement in flight to the shards' parameters, where they lack it.

        Args:
            span: where the parameters are new.
            unheld: of "in_flight" and "accumulated", what the parameters do not hold.
        """
        self._own.add((span.start, span.stop))
        if "in_flight" in unheld:
            parameters = self._vectors.parameters[span]
            parameters -= self.in_flight[span]
            self._changed(span)

    @override
    def swap_buffers(self, span: slice, step: int = 0) -> None:
        """Moves the part's own parameters of a range, and puts the movement into flight.

        It is zero where no parameters of the shards have arrived since the last step.
        """
        movement = self.in_flight[span]
        if (span.start, span.stop) not in self._aside:
            movement[:] = 0.0
            self._compress(span, step)
            return
        own = self._kept[span]
        movement[:] = self._vectors.parameters[span]
        movement -= own
        movement *= self._moves_by
        self._compress(span, step)
        own += movement

    @override
    def clear(self, span: slice) -> None:
        """Drops the part's own parameters of a range: the next ones that arrive take their place."""
        self._own.discard((span.start, span.stop))
        self._aside.discard((span.start, span.stop))
