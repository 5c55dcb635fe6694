"""Flat vectors of a part that replicas exchange: the gradient, the parameters, and the optimizer's state.

An exchange names ranges of them. Numbers arrive in the transport's memory, and are added or copied from there
without arrays in between. The module must not know messages, or whose turn it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
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
from partita.engine.protocol.kept_vector import Kept, state_name
from partita.engine.protocol.program_effects import PREDICTIONS
from partita.engine.runtime.buffers import Vectors
from partita.engine.runtime.directions import Directions
from partita.engine.transport.payload import Payload
from partita.layers.box import Box, BoxSet

GRADIENT: Final = "gradient"
PARAMETERS: Final = "parameters"
NORMS: Final = "norms"
SUM: Final = "sum"
DOTS: Final = "dots"
MESSAGE: Final = "message."
"""The name of a vector of messages that take the place of gradients begins so."""

STATE: Final = "state."
"""The name of a vector of an optimizer's state begins so."""

_BLOCK: Final = 1 << 15  # numbers of several vectors that fit a cache together


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
    """The vectors of one part by name: "gradient", "parameters", and "state.NAME" of its optimizer; and
    those of the driver, of which the kept ones may have a state, too ("state.VECTOR_NAME").

    "norms" is one more, where the optimizer needs norms of whole parameters, see `NormsLayout`; "sum", where
    an exchange of gradients goes on while the next one is computed; "dots", inner products in float64;
    "predictions", what teachers have predicted, which has a length of its own; and "message.0" and so on,
    which grow with the messages that take the place of gradients.

    The state has a place for every number. Where it is sharded over replicas, this part's numbers outside of
    its range keep their initial values, and the operating system gives zeros no memory.

    Attributes:
        size: of each vector.
        dtype: of each vector.
        names: of those that are the part's state.
        names_of_optimizer: of the state of the optimizer of "parameters", without "state.".
        predictions: the vector of that name, on the device.
    """

    def __init__(
        self,
        vectors: Vectors,
        optimizer: Optimizer,
        slots: Sequence[Slot],
        *,
        norms: NormsLayout | None = None,
        kept: Mapping[str, Kept] | None = None,
        scratch: Sequence[str] = (),
        predictions: int = 0,
        pool: ThreadPool,
    ) -> None:
        """Allocates the optimizers' state, in its initial values.

        Args:
            vectors: the part's parameters, and its whole gradient.
            optimizer: of the updates.
            slots: the parameters in the order of the part's vector.
            norms: the places of sums of squares; None where the optimizer needs none.
            kept: vectors of the driver that belong to the state; `restore` gives them their numbers.
            scratch: vectors of the driver that do not.
            predictions: numbers in the vector of that name.
            pool: the threads of an update.
        """
        self._vectors, self._optimizer, self._slots, self._pool = vectors, optimizer, tuple(slots), pool
        self._frozen, self._averaged = vectors.frozen, vectors.is_averaged
        self.size: Final = len(vectors.parameters)
        self.dtype: Final = vectors.dtype
        self._rows = _rows(Span(GRADIENT, 0, self.size))
        self._window = vectors.device.window(0, vectors.gradient)
        (gradient,) = self._window.arriving(self._rows)
        self._kept: dict[str, Kept] = dict(kept or {})
        optimizers = {PARAMETERS: optimizer} | {name: one.optimizer for name, one in self._kept.items()}
        self._optimizers: dict[str, Optimizer | None] = optimizers
        fresh = {
            name if vector == PARAMETERS else state_name(vector, name): numbers
            for vector, one in optimizers.items()
            if one is not None
            for name, numbers in one.state(self.size, vectors.dtype).items()
        }
        self._state = {name: vectors.device.taken(vector) for name, vector in fresh.items()}
        own = {name: vectors.device.zeros((self.size,), vectors.dtype) for name in (*self._kept, *scratch)}
        self.predictions: Final = vectors.device.zeros((predictions,), vectors.dtype)
        own[PREDICTIONS] = self.predictions
        self._directions = None
        if optimizer.measured is not None:
            self._directions = Directions(
                optimizer.measured,
                vectors.parameters,
                {name: self._state[name] for name in optimizer.state_names},
                device=vectors.device,
                dtype=vectors.dtype,
            )
        self._measures: dict[tuple[int, int], Callable[[UpdateContext], float]] = {}
        self._norms = np.zeros(0 if norms is None else norms.size, vectors.dtype)
        self._norms_layout = norms
        self._on_host = {GRADIENT: gradient, NORMS: self._norms}  # and "sum" and "dots", when they are used
        self.names_of_optimizer: Final = tuple(optimizer.state_names)
        self.names: Final = (PARAMETERS, *self._kept, *(STATE + name for name in fresh))
        self._arrays = {PARAMETERS: vectors.parameters, GRADIENT: vectors.gradient, **own}
        lasting = {PARAMETERS: vectors.parameters} | own | {STATE + k: v for k, v in self._state.items()}
        self._on_device = {name: vectors.device.window(0, vector) for name, vector in lasting.items()}
        self._updates: dict[tuple[str, str, int, int], list[tuple[str, Update]]] = {}

    # Exchanges.

    def of(self, span: Span) -> Vector:
        """Returns the host's array of a range, `[n]`. What is written to it counts after `_wrote`."""
        if span.vector in self._on_device:
            return self._on_device[span.vector].download(_rows(span))[0]
        known = self._on_host.get(span.vector)
        if known is None or (len(known) < span.stop and span.vector.startswith(MESSAGE)):
            assert span.vector == SUM or span.vector.startswith(MESSAGE), span
            size = self.size if span.vector == SUM else span.stop
            self._on_host[span.vector] = np.zeros(size, self.dtype)
            if known is not None:
                self._on_host[span.vector][: len(known)] = known
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

    def combine(
        self,
        span: Span,
        terms: Sequence[tuple[str, float]],
        unlearned: Sequence[tuple[str, float]] | None = None,
    ) -> None:
        """Replaces a range by the sum of factors times the same range of vectors, in their order.

        Sums may be infinite: an update looks at them. `unlearned` are the terms where no optimizer changes
        the numbers, if these are not the same.
        """
        if unlearned is None:
            self._sum(span.vector, span.start, span.stop, terms)
        else:
            for name, part in self._parts(span.start, span.stop, pieces=1):
                of = unlearned if name in self._frozen else terms
                self._sum(span.vector, part.start, part.stop, of)
        self._wrote(span)

    def _sum(self, into: str, start: int, stop: int, terms: Sequence[tuple[str, float]]) -> None:
        of = [(self.dtype.type(factor), self.of(Span(name, start, stop))) for name, factor in terms]
        target = self.of(Span(into, start, stop))
        with np.errstate(all="ignore"):
            for low in range(0, target.size, _BLOCK):
                block = slice(low, low + _BLOCK)
                total = np.zeros(target[block].size, self.dtype)
                for n, (factor, vector) in enumerate(of):
                    product = np.multiply(vector[block], factor)
                    total = np.add(total, product, out=total) if n else product
                target[block] = total

    def measure_dots(
        self, pairs: Sequence[tuple[str, str]], spans: Sequence[tuple[int, int]], *, place: int, size: int
    ) -> None:
        """Writes inner products over some ranges into "dots", from `place` on, and zeros to all other places.

        They are added up in float64.
        """
        dots = self._on_host[DOTS] = np.zeros(size)
        for n, (one, other) in enumerate(pairs):
            for start, stop in spans:
                for low in range(start, stop, _BLOCK):
                    high = min(low + _BLOCK, stop)
                    a, b = (self.of(Span(name, low, high)).astype(np.float64) for name in (one, other))
                    dots[place + n] += np.sum(a * b)

    def dots(self, size: int) -> tuple[float, ...]:
        """Returns the first numbers of "dots"."""
        return tuple(self._on_host[DOTS][:size].tolist())

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

    def prepare(
        self, start: int, stop: int, *, to: str = PARAMETERS, gradient: str = GRADIENT
    ) -> list[tuple[str, Update]]:
        """Prepares the updates of a range of a vector by one of another vector, and compiles them.

        Returns:
            The updates, each of a parameter or a part of one, by its name.
        """
        found = self._updates.get((to, gradient, start, stop))
        if found is None:
            found = self._updates[to, gradient, start, stop] = [
                (name, self._bind(part, to, gradient))
                for name, part in self._parts(start, stop, self._pool.threads)
                if name not in self._frozen or self._averaged(part)
            ]
        return found

    def measure(self, spans: Sequence[Span], *, replica: int, machine: int, updates: int = 0) -> None:
        """Writes sums of squares of some ranges to a part's place in "norms", and zeros to all others.

        `updates` is the number of them before the one that follows.
        """
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
                sums[1] += self._of_step(part, updates)

    def _of_step(self, part: slice, updates: int) -> float:
        """The sum of squares of the gradient, or of what the optimizer makes of it."""
        gradient = self._vectors.gradient[part]
        if self._directions is None:
            return float(self._vectors.device.sum_of_squares(gradient))
        if (part.start, part.stop) not in self._measures:
            self._measures[part.start, part.stop] = self._directions.bind(part, gradient)
        with np.errstate(all="ignore"):
            return self._measures[part.start, part.stop](UpdateContext(updates))

    def update(
        self, spans: Sequence[Span], *, updates: int, scale: float = 1.0, gradient: str = GRADIENT
    ) -> bool:
        """Updates ranges by the gradient, and by "norms" where the parameters' optimizer needs them.

        Args:
            spans: the ranges, of "parameters" or a vector that is kept.
            updates: the number of updates of the vector before this one.
            scale: factor of the learning rate.
            gradient: the vector of the gradients.

        Returns:
            Whether the gradient was finite; if not, the parameters are spoilt.
        """
        prepared = [
            one
            for span in spans
            for one in self.prepare(span.start, span.stop, to=span.vector, gradient=gradient)
        ]
        if gradient == GRADIENT:
            self._window.upload(self._rows)
        of_kept = any(span.vector != PARAMETERS for span in spans)
        finite, layout = [True] * len(prepared), None if of_kept else self._norms_layout
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

    def _bind(self, part: slice, to: str, gradient: str) -> Update:
        vectors, optimizer = self._vectors, self._optimizers[to]
        assert optimizer is not None, f"no optimizer keeps a state for {to!r}"
        names = {own: own if to == PARAMETERS else state_name(to, own) for own in optimizer.state_names}
        has_copy = to == PARAMETERS and vectors.copy is not None
        return vectors.device.bind(
            AVERAGE if self._averaged(part) else optimizer,
            self._arrays[to][part],
            self._arrays[gradient][part],
            {own: self._state[name][part] for own, name in names.items()},
            accumulated=None,
            copy=vectors.copy[part] if has_copy and vectors.copy is not None else None,
        )

    # Files.

    def snapshot(self, spans: Sequence[Span]) -> ShardSnapshot:
        """Returns a copy of the parameters and the state of some ranges, one after the other."""

        def joined(vector: Vector) -> Vector:
            whole = self._vectors.device.given(vector)
            return np.concatenate([whole[:0], *(whole[span.start : span.stop] for span in spans)])

        values = joined(self._vectors.parameters)
        state = {name: self._arrays[name] for name in self._kept} | self._state
        return ShardSnapshot(values, {name: joined(vector) for name, vector in state.items()})

    def slots(self, spans: Sequence[Span]) -> list[Slot]:
        """Returns the parameters whose numbers lie in some ranges, in the order of `snapshot`."""
        return [slot for span in spans for slot in within(self._slots, span.start, span.stop)]

    def restore(self, values: Vector, state: Mapping[str, Vector] | None) -> None:
        """Replaces all parameters and, unless None, the whole state; a kept vector without one starts."""
        found = dict(state or {})
        whole_state = {PARAMETERS: values}
        for name, one in self._kept.items():
            fresh = values if one.start == PARAMETERS else np.zeros_like(values)
            whole_state[name] = found.get(name, fresh)
        whole_state |= {STATE + name: vector for name, vector in found.items() if name in self._state}
        self._replace(whole_state)

    def replace_own(self, found: Mapping[str, Vector]) -> None:
        """Replaces the parameters ("parameters") and vectors of their optimizer's state, by name."""
        names = {name: name if name == PARAMETERS else STATE + name for name in found}
        self._replace({names[name]: vector for name, vector in found.items()})

    def _replace(self, vectors: Mapping[str, Vector]) -> None:
        for name, vector in vectors.items():
            whole = Span(name, 0, self.size)
            np.copyto(self.of(whole), vector)
            self._wrote(whole)


def _rows(span: Span) -> BoxSet:
    return BoxSet((Box(((span.start, span.stop),)),))
