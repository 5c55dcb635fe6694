"""Gradients that a part applies to its own parameters, and adds up for what it sends to the shards.

The module must not know messages, or when anything is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from partita.engine.numerics.row_gradient import RowGradient, Rows, Values
from partita.engine.parameters.optimizers import Optimizer, Update, UpdateContext, update_rows
from partita.engine.parameters.optimizers.sgd import AVERAGE
from partita.engine.parameters.optimizers.update_loop import Stored
from partita.engine.parameters.row_payload import encode
from partita.engine.parameters.slots import outside
from partita.engine.parameters.vector import Vector
from partita.engine.runtime.buffers import Vectors
from partita.engine.runtime.fused_update import Apply
from partita.engine.runtime.local_optimizer import HeldState, LocalOptimizer
from partita.engine.runtime.push_messages import PushMessages
from partita.engine.runtime.row_tables import PartTable

_IN_CACHE: Final = 1 << 18
"""Numbers whose state is copied while they are in a cache."""


class GradientAccumulation(LocalOptimizer):
    """Updates the part's own parameters, and adds up the gradients for the next push, in one pass."""

    def __init__(
        self,
        optimizer: Optimizer,
        vectors: Vectors,
        *,
        per_step: int = 1,
        follows_shard: bool = False,
        memory: Callable[[int], npt.NDArray[np.uint8] | None] = lambda n_bytes: None,
        held: HeldState | None = None,
        replicas: int = 1,
        messages: PushMessages | None = None,
    ) -> None:
        """Sums of zero.

        Args:
            optimizer: see `LocalOptimizer`.
            vectors: see `LocalOptimizer`.
            per_step: see `LocalOptimizer`.
            follows_shard: from each push on, parameters and state are those that the push gives a shard which
                gets no other, to the bit: a sum of gradients updates them in another way than one after the
                other.
            memory: gives the gradient in flight memory that shards read, see `Mailbox.memory`.
            held: see `LocalOptimizer`.
            replicas: see `LocalOptimizer`.
            messages: take the place of gradients in pushes; None: gradients are sent.
        """
        super().__init__(optimizer, vectors, per_step=per_step, held=held, replicas=replicas)
        self.messages = messages
        self.accumulated = vectors.device.zeros(vectors.parameters.shape, vectors.dtype)
        shared = memory(self.accumulated.nbytes) if vectors.device.is_host else None
        self.in_flight = vectors.device.zeros(vectors.parameters.shape, vectors.dtype)
        if shared is not None:
            self.in_flight = shared.view(vectors.dtype)
        if vectors.tables and not self.takes_rows:
            raise ValueError(f"{optimizer} on {vectors.device} takes no gradients of a few rows")
        kept = {"": vectors.parameters} if follows_shard or replicas > 1 else {}
        kept |= self._state if follows_shard else {}
        self.tables = [PartTable(place, vectors.parameters, vectors.copy, kept) for place in vectors.tables]
        self._on_shard = optimizer.on_shard()
        self._over: dict[tuple[str, int, int], Callable[[UpdateContext], None]] = {}
        self._mirror = _Mirror(self, vectors) if follows_shard else None

    def advance(self, updates: int | None = None, scale: float = 1.0) -> None:
        """Begins a step, see `LocalOptimizer`."""
        super().advance(updates, scale)
        if self._mirror is not None:
            self._age = self._mirror.advance(self._age)

    def install(self, span: slice, unheld: Sequence[str], updates: int, scales: Sequence[float]) -> None:
        """Applies gradients over new parameters, as a shard will, but with the part's own state.

        The state does not change: it holds these gradients already.

        Args:
            span: where the parameters are new.
            unheld: of "in_flight" and "accumulated", those which the parameters do not hold.
            updates: of the new parameters so far.
            scales: for each of them, the factor of the learning rate.
        """
        if self._mirror is None:
            for table, first, stop in self.rows_in(span):
                table.forget(first, stop)
        age = self._age + self._per_step
        for n, (name, scale) in enumerate(zip(unheld, scales, strict=True)):
            if name == "accumulated" and self._mirror is not None:
                self._mirror.keep(span)
            self._apply_over(name, span)(UpdateContext(updates + n, age=age, scale=scale))
        if "accumulated" not in unheld and self._mirror is not None:
            self._mirror.keep(span)

    def swap_buffers(self, span: slice, step: int = 0) -> None:
        """Moves the sum of a range into flight, up to a step, and starts from zero."""
        for part in outside(self._vectors.tables, span.start, span.stop):
            self.in_flight[part] = self.accumulated[part]
            self.accumulated[part] = 0.0
        for table, first, stop in self.rows_in(span):
            table.swap(first, stop)
        if self.messages is not None:
            self.messages.compress(span, step, self.in_flight)
        if self._mirror is not None:
            self._mirror.push(span, UpdateContext(self._count, scale=self._scale))

    def clear(self, span: slice) -> None:
        """Sets the sum of a range to zero."""
        for part in outside(self._vectors.tables, span.start, span.stop):
            self.accumulated[part] = 0.0
        for table, first, stop in self.rows_in(span):
            table.accumulated.remove(first, stop)

    def pushed(self, span: slice) -> list[Vector] | Vector:
        """The gradient in flight; where it has rows of tables, see `row_payload`."""
        found = [(first, table.in_flight.between(first, stop)) for table, first, stop in self.rows_in(span)]
        if not found:
            whole = self._vectors.device.given
            return whole(self.in_flight[span]) if self.messages is None else self.messages.message(span)
        numbers = [self.in_flight[part] for part in outside(self._vectors.tables, span.start, span.stop)]
        if self.messages is not None:
            numbers = [self.messages.message(span)]
        return encode(numbers, [(rows - first, values) for first, (rows, values) in found])

    def restore(self, span: slice) -> None:
        """Makes the rows of tables what was fetched last."""
        for table, first, stop in self.rows_in(span):
            table.restore(first, stop)

    def rows_in(self, span: slice) -> Iterator[tuple[PartTable, int, int]]:
        """Yields the tables in a range, and which rows are in it."""
        for table in self.tables:
            first, stop = table.place.between(span.start, span.stop)
            if first < stop:
                yield table, first, stop

    @override
    def bind(self, span: slice, gradient: Stored) -> Apply:
        """Prepares the update of a range, see `LocalOptimizer`; of a table, that of the rows not zero."""
        for table in self.tables:
            if (table.place.start, table.place.stop) == (span.start, span.stop):
                return self._bind_table(span, gradient.reshape(-1, table.place.width))
        return super().bind(span, gradient)

    def _bind_table(self, span: slice, gradient: Stored) -> Apply:
        rows = RowGradient(gradient.shape[1], self._vectors.dtype)
        apply = self.bind_rows(span, rows)

        def update(factor: float, later: int = 0) -> bool:
            rows.clear()
            rows.add_table(gradient)
            return apply(factor, later)

        return update

    def bind_push(self, span: slice, name: str, state: Mapping[str, Vector]) -> Update:
        """Prepares the update of a range by a vector of gradients, as a shard makes it."""
        vectors = self._vectors
        copy = None if vectors.copy is None else vectors.copy[span]
        gradient = getattr(self, name)[span]
        rule = AVERAGE if vectors.is_averaged(span) else self._on_shard
        return vectors.device.bind(
            rule, vectors.parameters[span], gradient, state, accumulated=None, copy=copy
        )

    def push_rows(
        self, table: PartTable, rows: Rows, gradient: Values, context: UpdateContext, *, keep_state: bool
    ) -> None:
        """Updates rows of a table as a shard does; without `keep_state` the state does not change."""
        vectors = self._vectors
        state = {name: table.of(vector) for name, vector in self._state.items()}
        copy = None if vectors.copy is None else table.of(vectors.copy)
        values = table.of(vectors.parameters)
        update_rows(self._on_shard, values, rows, gradient, state, context, copy=copy, keep_state=keep_state)

    def _accumulated(self, span: slice) -> Vector:
        return self.accumulated[span]

    @override
    def _accumulate_rows(self, span: slice, gradient: RowGradient, factor: float) -> None:
        for table, _, _ in self.rows_in(span):
            table.save(gradient.rows)
            table.accumulated.add(gradient.rows, gradient.values * gradient.values.dtype.type(factor))

    def _apply_over(self, name: str, span: slice) -> Callable[[UpdateContext], None]:
        """The update of a range by a vector of gradients, with copies of the state; prepared once."""
        key = (name, span.start, span.stop)
        if key not in self._over:
            most, vectors = _IN_CACHE, self._vectors
            scratch = {kept: vectors.device.zeros((most,), vectors.dtype) for kept in self._state}
            blocks = [
                slice(start, min(start + most, part.stop))
                for whole in outside(vectors.tables, span.start, span.stop)
                for part in vectors.updated(whole)
                for start in range(part.start, part.stop, most)
            ]
            bound = [self._bind_over(name, block, scratch) for block in blocks]

            def apply(context: UpdateContext) -> None:
                for block in bound:
                    block(context)
                for table, first, stop in self.rows_in(span):
                    rows, values = getattr(table, name).between(first, stop)
                    if self._mirror is None:
                        table.save(rows)
                    self.push_rows(table, rows, values, context, keep_state=False)

            self._over[key] = apply
        return self._over[key]

    def _bind_over(
        self, name: str, span: slice, scratch: Mapping[str, Vector]
    ) -> Callable[[UpdateContext], object]:
        own = {kept: vector[: span.stop - span.start] for kept, vector in scratch.items()}
        update, copy = self.bind_push(span, name, own), self._vectors.device.copy
        pairs = [(own[kept], self._state[kept][span]) for kept in own]
        if not pairs:
            return update

        def apply(context: UpdateContext) -> None:
            for target, source in pairs:
                copy(target, source)
            update(context)

        return apply


class _Mirror:
    """The parameters and the state after the last push, as the shards have them."""

    def __init__(self, updates: GradientAccumulation, vectors: Vectors) -> None:
        self._updates, self._vectors_of = updates, vectors
        self._vectors = {"": vectors.parameters, **updates._state}
        device, dtype = vectors.device, vectors.dtype
        self._kept = {name: device.zeros(vector.shape, dtype) for name, vector in self._vectors.items()}
        for part in self._parts(slice(0, len(vectors.parameters))):
            for name, vector in self._vectors.items():
                self._kept[name][part] = vector[part]
        self._state = updates._state
        self._bound: dict[tuple[int, int], list[Update]] = {}
        self._age = updates._age + updates._per_step  # updates of the state
        self._pushed = False  # since the last step began

    def advance(self, age: int) -> int:
        """Begins a step; returns the age of the part's state."""
        if not self._pushed:
            return age
        self._pushed, self._age = False, self._age + 1
        return self._age

    def keep(self, span: slice) -> None:
        """Keeps the present parameters of a range, which are those of a shard."""
        for part in self._parts(span):
            self._kept[""][part] = self._vectors[""][part]
        for table, first, stop in self._updates.rows_in(span):
            table.refresh("", first, stop)

    def _parts(self, span: slice) -> Iterator[slice]:
        return outside(self._vectors_of.tables, span.start, span.stop)

    def push(self, span: slice, context: UpdateContext) -> None:
        """Makes the update that a push causes."""
        key = (span.start, span.stop)
        if key not in self._bound:
            self._bound[key] = [
                self._updates.bind_push(part, "in_flight", {n: v[part] for n, v in self._state.items()})
                for whole in self._parts(span)
                for part in self._vectors_of.updated(whole)
            ]
        context = context._replace(age=self._age)
        for name, vector in self._vectors.items():
            for part in self._parts(span):
                vector[part] = self._kept[name][part]
        for update in self._bound[key]:
            update(context)
        for name, vector in self._vectors.items():
            for part in self._parts(span):
                self._kept[name][part] = vector[part]
        for table, first, stop in self._updates.rows_in(span):
            table.restore(first, stop)
            rows, values = table.in_flight.between(first, stop)
            self._updates.push_rows(table, rows, values, context, keep_state=True)
        self._pushed = True
