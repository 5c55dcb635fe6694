"""Flat vectors of a part that replicas exchange: the gradient, the parameters, and the optimizer's state.

An exchange names ranges of them. Numbers arrive in the transport's memory, and are added or copied from there
without arrays in between. The module must not know messages, or whose turn it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

import numpy as np

from partita.engine.kernels.thread_pool import ThreadPool
from partita.engine.parameters.optimizers import Optimizer, Update, UpdateContext
from partita.engine.parameters.slots import Slot, within
from partita.engine.parameters.storage import ShardSnapshot
from partita.engine.parameters.vector import Vector
from partita.engine.protocol.events import Span
from partita.engine.runtime.buffers import Vectors
from partita.engine.transport.payload import Payload
from partita.layers.box import Box, BoxSet

GRADIENT: Final = "gradient"
PARAMETERS: Final = "parameters"
STATE: Final = "state."
"""The name of a vector of the optimizer's state begins so."""

_WORTH_A_THREAD: Final = 1 << 16
"""Numbers whose update takes longer than waking a thread."""


class ProgramVectors:
    """The vectors of one part by name: "gradient", "parameters", and "state.NAME" of its optimizer.

    The state has a place for every number. Where it is sharded over replicas, this part's numbers outside of
    its range keep their initial values, and the operating system gives zeros no memory.

    Attributes:
        size: of each vector.
        dtype: of each vector.
        names: of those that are the part's state.
    """

    def __init__(
        self, vectors: Vectors, optimizer: Optimizer, slots: Sequence[Slot], *, pool: ThreadPool
    ) -> None:
        """Allocates the optimizer's state, in its initial values.

        Args:
            vectors: the part's parameters, and its whole gradient.
            optimizer: of the updates.
            slots: the parameters in the order of the part's vector.
            pool: the threads of an update.
        """
        self._vectors, self._optimizer, self._slots, self._pool = vectors, optimizer, tuple(slots), pool
        self.size: Final = len(vectors.parameters)
        self.dtype: Final = vectors.dtype
        self._rows = BoxSet((Box(((0, self.size),)),))
        self._window = vectors.device.window(0, vectors.gradient)
        (self._gradient,) = self._window.arriving(self._rows)
        fresh = optimizer.state(self.size, vectors.dtype)
        self._state = {name: vectors.device.taken(vector) for name, vector in fresh.items()}
        self.names: Final = (PARAMETERS, *(STATE + name for name in fresh))
        self._updates: dict[tuple[int, int], list[tuple[str, Update]]] = {}

    # Exchanges.

    def of(self, span: Span) -> Vector:
        """The host's array of a range, `[n]`."""
        if span.vector == GRADIENT:
            return self._gradient[span.start : span.stop]
        if span.vector == PARAMETERS:
            return self._vectors.arriving(slice(span.start, span.stop))
        state = self._state[span.vector.removeprefix(STATE)]
        return self._vectors.device.given(state)[span.start : span.stop]

    def add(self, span: Span, payload: Payload, *, divisor: float = 1) -> None:
        """Adds the numbers of a payload to a range, and releases the payload; sums may be infinite.

        The sums are divided by `divisor` unless it is 1.
        """
        target = self.of(span)
        with np.errstate(all="ignore"):
            payload.add_into(target)
            if divisor != 1:
                np.divide(target, target.dtype.type(divisor), out=target)
        payload.release()

    def replace(self, span: Span, payload: Payload) -> None:
        """Replaces a range by the numbers of a payload, and releases the payload."""
        target = self.of(span)
        payload.copy_into(target)
        payload.release()
        if span.vector == PARAMETERS:
            self._vectors.changed(slice(span.start, span.stop))

    def computed(self) -> None:
        """Brings the gradient of a finished step to where exchanges read and write it."""
        self._window.download(self._rows)

    # Updates.

    def prepare(self, start: int, stop: int) -> list[tuple[str, Update]]:
        """Prepares the updates of a range of the parameters, and compiles them.

        Returns:
            The updates, each of a parameter or a part of one, by its name.
        """
        found = self._updates.get((start, stop))
        if found is None:
            found = self._updates[start, stop] = [
                (name, self._bind(part)) for name, part in self._parts(start, stop)
            ]
        return found

    def update(
        self, spans: Sequence[Span], *, updates: int, factors: Mapping[str, float] | None = None
    ) -> bool:
        """Updates ranges of the parameters by the gradient.

        Args:
            spans: the ranges.
            updates: the number of updates before this one.
            factors: for each parameter, the factor of its gradient; None: 1.

        Returns:
            Whether the gradient was finite; if not, the parameters are spoilt.
        """
        prepared = [one for span in spans for one in self.prepare(span.start, span.stop)]
        self._window.upload(self._rows)
        finite = [True] * len(prepared)

        def work(first: int, last: int) -> None:
            for n in range(first, last):
                name, update = prepared[n]
                finite[n] = update(UpdateContext(updates, factors.get(name, 1.0) if factors else 1.0))

        with np.errstate(all="ignore"):
            self._pool.split(0, len(prepared), work)
        return all(finite) and self._vectors.device.updates_were_finite()

    def _parts(self, start: int, stop: int) -> Iterator[tuple[str, slice]]:
        """The parameters in a range, each in pieces for threads where it is large."""
        position = 0
        for slot in self._slots:
            low, high = max(position, start), min(position + slot.size, stop)
            position += slot.size
            if low < high:
                pieces = max(1, min(self._pool.threads, (high - low) // _WORTH_A_THREAD))
                cuts = [low + (high - low) * piece // pieces for piece in range(pieces + 1)]
                yield from ((slot.parameter, slice(a, b)) for a, b in pairwise(cuts))

    def _bind(self, part: slice) -> Update:
        vectors = self._vectors
        return vectors.device.bind(
            self._optimizer,
            vectors.parameters[part],
            vectors.gradient[part],
            {name: vector[part] for name, vector in self._state.items()},
            accumulated=None,
            copy=None if vectors.copy is None else vectors.copy[part],
        )

    # Files.

    def snapshot(self, spans: Sequence[Span]) -> ShardSnapshot:
        """Returns a copy of the parameters and the state of some ranges, one after the other."""

        def joined(vector: Vector) -> Vector:
            whole = self._vectors.device.given(vector)
            return np.concatenate([whole[:0], *(whole[span.start : span.stop] for span in spans)])

        values = joined(self._vectors.parameters)
        return ShardSnapshot(values, {name: joined(vector) for name, vector in self._state.items()})

    def slots(self, spans: Sequence[Span]) -> list[Slot]:
        """Returns the parameters whose numbers lie in some ranges, in the order of `snapshot`."""
        return [slot for span in spans for slot in within(self._slots, span.start, span.stop)]

    def restore(self, values: Vector, state: Mapping[str, Vector] | None) -> None:
        """Replaces all parameters and, unless None, the whole state."""
        np.copyto(self._vectors.arriving(), values)
        self._vectors.changed()
        for name, vector in (state or {}).items():
            self._vectors.device.copy(
                self._state[name], self._vectors.device.taken(np.array(vector, self.dtype))
            )
