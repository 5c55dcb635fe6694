"""Flat vectors of a part that replicas exchange: the gradient, the parameters, and the optimizer's state.

An exchange names ranges of them. Numbers arrive in the transport's memory, and are added or copied from there
without arrays in between. The module must not know messages, or whose turn it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from partita.engine.kernels.thread_pool import ThreadPool
from partita.engine.parameters.optimizers import Optimizer, Squares, Update, UpdateContext
from partita.engine.parameters.optimizers.sgd import AVERAGE
from partita.engine.parameters.slots import Slot, within
from partita.engine.parameters.snapshot import ShardSnapshot
from partita.engine.parameters.vector import Vector
from partita.engine.protocol.events import Span
from partita.engine.runtime.buffers import Vectors
from partita.engine.transport.payload import Payload
from partita.layers.box import Box, BoxSet

GRADIENT: Final = "gradient"
PARAMETERS: Final = "parameters"
NORMS: Final = "norms"
SUM: Final = "sum"
STATE: Final = "state."
"""The name of a vector of the optimizer's state begins so."""


@dataclass(frozen=True)
class NormsLayout:
    """Places of sums of squares in the vector "norms": `[replica, machine, parameter, value or gradient]`.

    Each part writes its own, and all others are zero: added up over all parts, to the bit, in any order.

    Args:
        replicas: the largest number of them.
        machines: of each replica.
        parameters: names of all parameters.
    """

    replicas: int
    machines: int
    parameters: tuple[str, ...]

    @property
    def size(self) -> int:
        """Numbers in the vector."""
        return self.replicas * self.machines * len(self.parameters) * 2

    def squares(self, vector: Vector) -> dict[str, Squares]:
        """Returns the sums of all parts, added in float64 in the order of their places."""
        sums = vector.astype(np.float64).reshape(-1, len(self.parameters), 2).sum(axis=0)
        return {name: (float(w), float(g)) for name, (w, g) in zip(self.parameters, sums, strict=True)}


class ProgramVectors:
    """The vectors of one part by name: "gradient", "parameters", and "state.NAME" of its optimizer.

    "norms" is one more, where the optimizer needs norms of whole parameters, see `NormsLayout`; and "sum",
    where an exchange of gradients goes on while the next one is computed.

    The state has a place for every number. Where it is sharded over replicas, this part's numbers outside of
    its range keep their initial values, and the operating system gives zeros no memory.

    Attributes:
        size: of each vector.
        dtype: of each vector.
        names: of those that are the part's state.
    """

    def __init__(
        self,
        vectors: Vectors,
        optimizer: Optimizer,
        slots: Sequence[Slot],
        *,
        norms: NormsLayout | None = None,
        pool: ThreadPool,
    ) -> None:
        """Allocates the optimizer's state, in its initial values.

        Args:
            vectors: the part's parameters, and its whole gradient.
            optimizer: of the updates.
            slots: the parameters in the order of the part's vector.
            norms: the places of sums of squares; None where the optimizer needs none.
            pool: the threads of an update.
        """
        self._vectors, self._optimizer, self._slots, self._pool = vectors, optimizer, tuple(slots), pool
        self._frozen, self._averaged = vectors.frozen, vectors.is_averaged
        self.size: Final = len(vectors.parameters)
        self.dtype: Final = vectors.dtype
        self._rows = _rows(Span(GRADIENT, 0, self.size))
        self._window = vectors.device.window(0, vectors.gradient)
        (gradient,) = self._window.arriving(self._rows)
        fresh = optimizer.state(self.size, vectors.dtype)
        self._state = {name: vectors.device.taken(vector) for name, vector in fresh.items()}
        self._norms = np.zeros(0 if norms is None else norms.size, vectors.dtype)
        self._norms_layout = norms
        self._on_host = {GRADIENT: gradient, NORMS: self._norms}  # and "sum", when it is used
        self.names: Final = (PARAMETERS, *(STATE + name for name in fresh))
        lasting = {PARAMETERS: vectors.parameters} | {STATE + k: v for k, v in self._state.items()}
        self._on_device = {name: vectors.device.window(0, vector) for name, vector in lasting.items()}
        self._updates: dict[tuple[int, int], list[tuple[str, Update]]] = {}

    # Exchanges.

    def of(self, span: Span) -> Vector:
        """Returns the host's array of a range, `[n]`. What is written to it counts after `_wrote`."""
        if span.vector in self._on_device:
            return self._on_device[span.vector].download(_rows(span))[0]
        if span.vector not in self._on_host:
            assert span.vector == SUM, span
            self._on_host[SUM] = np.zeros(self.size, self.dtype)
        return self._on_host[span.vector][span.start : span.stop]

    def _wrote(self, span: Span) -> None:
        """Takes over numbers that were written to the host's array of a range."""
        if span.vector not in self._on_device:
            return
        self._on_device[span.vector].upload(_rows(span))
        vectors, part = self._vectors, slice(span.start, span.stop)
        if span.vector == PARAMETERS and vectors.copy is not None:
            vectors.device.copy(vectors.copy[part], vectors.parameters[part])

    def copy(self, source: Span, target: str) -> None:
        """Copies the numbers of a range to the same range of another vector."""
        there = Span(target, source.start, source.stop)
        np.copyto(self.of(there), self.of(source))
        self._wrote(there)

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
        self._wrote(span)

    def replace(self, span: Span, payload: Payload) -> None:
        """Replaces a range by the numbers of a payload, and releases the payload."""
        payload.copy_into(self.of(span))
        payload.release()
        self._wrote(span)

    def computed(self) -> bool:
        """Brings the gradient of a finished step to where exchanges read and write it. Returns True: sums of
        it may be infinite, and an update looks at them.
        """
        self._window.download(self._rows)
        return True

    # Updates.

    def prepare(self, start: int, stop: int) -> list[tuple[str, Update]]:
        """Prepares the updates of a range of the parameters, and compiles them.

        Returns:
            The updates, each of a parameter or a part of one, by its name.
        """
        found = self._updates.get((start, stop))
        if found is None:
            found = self._updates[start, stop] = [
                (name, self._bind(part))
                for name, part in self._parts(start, stop, self._pool.threads)
                if name not in self._frozen or self._averaged(part)
            ]
        return found

    def measure(self, spans: Sequence[Span], *, replica: int, machine: int) -> None:
        """Writes sums of squares of some ranges to a part's place in "norms", and zeros to all others."""
        layout, device = self._norms_layout, self._vectors.device
        assert layout is not None, "the optimizer needs no norms"
        self._window.upload(self._rows)
        self._norms.fill(0)
        places = self._norms.reshape(layout.replicas, layout.machines, len(layout.parameters), 2)
        for span in spans:
            for name, part in self._parts(span.start, span.stop, pieces=1):
                if name in self._frozen:
                    continue
                sums = places[replica, machine, layout.parameters.index(name)]
                sums[0] += device.sum_of_squares(self._vectors.parameters[part])
                sums[1] += device.sum_of_squares(self._vectors.gradient[part])

    def update(self, spans: Sequence[Span], *, updates: int, scale: float = 1.0) -> bool:
        """Updates ranges of the parameters by the gradient, and by "norms" where the optimizer needs them.

        Args:
            spans: the ranges.
            updates: the number of updates before this one.
            scale: factor of the learning rate.

        Returns:
            Whether the gradient was finite; if not, the parameters are spoilt.
        """
        prepared = [one for span in spans for one in self.prepare(span.start, span.stop)]
        self._window.upload(self._rows)
        finite, layout = [True] * len(prepared), self._norms_layout
        factors = {} if layout is None else self._optimizer.factors(layout.squares(self._norms))

        def work(first: int, last: int) -> None:
            for n in range(first, last):
                name, update = prepared[n]
                factor = 1.0 if name in self._frozen else factors.get(name, 1.0)
                finite[n] = update(UpdateContext(updates, factor, scale=scale))

        with np.errstate(all="ignore"):
            self._pool.split(0, len(prepared), work)
        return all(finite) and self._vectors.device.updates_were_finite()

    def _parts(self, start: int, stop: int, pieces: int) -> Iterator[tuple[str, slice]]:
        """The parameters in a range, each in so many pieces for threads at most, where large."""
        position = 0
        for slot in self._slots:
            low, high = max(position, start), min(position + slot.size, stop)
            position += slot.size
            if low < high:
                n = self._pool.shares.count("numbers", high - low, most=pieces)
                cuts = [low + (high - low) * piece // n for piece in range(n + 1)]
                yield from ((slot.parameter, slice(a, b)) for a, b in pairwise(cuts))

    def _bind(self, part: slice) -> Update:
        vectors = self._vectors
        return vectors.device.bind(
            AVERAGE if self._averaged(part) else self._optimizer,
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
        for name, vector in {PARAMETERS: values, **{STATE + k: v for k, v in (state or {}).items()}}.items():
            whole = Span(name, 0, self.size)
            np.copyto(self.of(whole), vector)
            self._wrote(whole)


def _rows(span: Span) -> BoxSet:
    return BoxSet((Box(((span.start, span.stop),)),))
