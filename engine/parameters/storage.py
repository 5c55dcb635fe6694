"""Updates of a shard's parameters by gradients, and snapshots of all its vectors.

The state of an optimizer is vectors of the shard's store, beside `x`. Which gradients are applied, and in
which order, is decided by `partita.engine.protocol.apply_on_arrival`. One thread at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from partita.engine.numerics.row_gradient import Rows, Values
from partita.engine.parameters.optimizers import Optimizer, UpdateContext, update_rows
from partita.engine.parameters.optimizers.sgd import AVERAGE
from partita.engine.parameters.slots import Table, intersections
from partita.engine.parameters.snapshot import NotFinite
from partita.engine.parameters.vector import Vector
from partita.engine.parameters.vectors import VectorStore
from partita.engine.protocol.commands import POINT
from partita.engine.protocol.events import Span


class Updater:
    """Updates `x` of a store by an optimizer, whose state is in the same store."""

    def __init__(
        self,
        optimizer: Optimizer,
        store: VectorStore,
        *,
        fresh: bool = True,
        learning: Sequence[tuple[int, int]] | None = None,
        averaged: Sequence[tuple[int, int]] = (),
    ) -> None:
        """Compiles the update.

        Args:
            optimizer: of the replicas; a shard applies what it leaves to one.
            store: with `x`, in float32 or float64.
            fresh: creates the optimizer's initial state; else the store has it from a checkpoint.
            learning: the ranges of `x` that are trainable, ascending; None: all of it. A push leaves the
                others as they are, whatever it holds for them.
            averaged: the ranges that are running averages, from which a push is subtracted.

        Raises:
            ValueError: the store has another optimizer's state.
        """
        names = set(optimizer.state_names)
        if fresh:
            for name, vector in optimizer.state(store.size, store.dtype).items():
                store.target(name)[...] = vector
        found = set(store.names()) - {POINT}
        if found != names:
            raise ValueError(
                f"{optimizer} keeps {sorted(names)} of {store.size} numbers each, found {sorted(found)}; "
                "continue with the optimizer that the checkpoint was written with"
            )
        self.optimizer = optimizer.on_shard()
        self.store = store
        self._learning = ((0, store.size),) if learning is None else tuple(learning)
        self._rules = [(self.optimizer, self._learning)] + ([(AVERAGE, averaged)] if averaged else [])
        none = np.zeros(0, store.dtype)  # compiles
        for rule, _ in self._rules:
            rule.bind(none, none, dict.fromkeys(rule.state_names, none))(UpdateContext(0))

    def apply(self, span: Span, gradient: Iterable[Vector], updates: int, scale: float = 1.0) -> None:
        """Updates the values of the span, after `updates` earlier ones.

        Args:
            span: of `x`.
            gradient: pieces, in order, of its size and dtype together. Each is read in one pass over memory.
            updates: for the optimizer's schedules.
            scale: factor of the learning rate.

        Raises:
            ValueError: the gradient has another size or dtype; nothing is changed by the piece at fault.
            NotFinite: a number of the gradient is NaN or infinite. The pass itself detects it (a check before
                would cost a third of it), so the values are spoilt and must not be read any more.
        """
        if span.vector != POINT or not 0 <= span.start <= span.stop <= self.store.size:
            raise ValueError(f"{span} is no range of a shard's {self.store.size} values")
        names = (POINT, *self.optimizer.state_names)
        vectors = {name: self.store.writable(Span(name, span.start, span.stop)) for name in names}
        context, finite, start = UpdateContext(updates, scale=scale), True, span.start
        for piece in gradient:
            stop = start + piece.size
            if piece.ndim != 1 or piece.dtype != self.store.dtype or stop > span.stop:
                raise ValueError(
                    f"the gradient of [{start}:{span.stop}] is {piece.dtype} {piece.shape}; "
                    f"it must be {self.store.dtype} ({span.stop - start},)"
                )
            parts = ((rule, p) for rule, some in self._rules for p in intersections(some, start, stop))
            for rule, part in parts:
                state = {name: vector[part] for name, vector in vectors.items()}
                values, own = state.pop(POINT), piece[part.start - start : part.stop - start]
                finite &= rule.bind(values, np.ascontiguousarray(own), state)(context)
            start = stop
        if start != span.stop:
            raise ValueError(f"the gradient of [{span.start}:{span.stop}] ends at {start}")
        if not finite:
            raise self._not_finite(span)

    def apply_rows(
        self, table: Table, rows: Rows, gradient: Values, updates: int, scale: float = 1.0
    ) -> None:
        """Updates some rows of a table in `x`, after `updates` earlier updates of the table.

        Args:
            table: its range, which is trainable.
            rows: int64 `[k]`, of the table, each once.
            gradient: `[k, width]`, of the dtype of the values.
            updates: for the optimizer's schedules.
            scale: factor of the learning rate.

        Raises:
            NotFinite: as `apply`.
        """
        names, own = (POINT, *self.optimizer.state_names), slice(table.start, table.stop)
        vectors = {name: self.store.writable(Span(name, table.start, table.stop)) for name in names}
        state = {name: vector[own].reshape(-1, table.width) for name, vector in vectors.items()}
        values = state.pop(POINT)
        context = UpdateContext(updates, scale=scale)
        if not update_rows(self.optimizer, values, rows, gradient, state, context):
            raise self._not_finite(Span(POINT, table.start, table.stop))

    def _not_finite(self, span: Span) -> NotFinite:
        return NotFinite(
            f"a push to its values [{span.start}:{span.stop}] is not finite; lower the learning rate, or "
            "look at the data"
        )
