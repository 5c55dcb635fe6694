"""Joins what the parts of a session collect in a step: rows of activations and gradients, and vectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from partita.engine.kernels.kernel import Array
from partita.engine.numerics import master, storage, upcast_array
from partita.engine.parameters.layout import Layout, scatter
from partita.engine.parameters.vector import Vector
from partita.engine.transport.payload import Payload
from partita.partitioner.ir.buffer import Buffer, parse_buffer
from partita.partitioner.plan import Plan

VECTORS = ("parameters", "gradient")
"""Names that stand for whole vectors; all others are buffers."""


@dataclass(frozen=True)
class Collector:
    """Joins payloads of a plan's parts.

    Args:
        plan: the plan that the parts play.
        layout: where each machine's parameters lie.
    """

    plan: Plan
    layout: Layout

    def join(
        self, collect: Sequence[str], payloads: Sequence[Payload | None], tables: Sequence[Array]
    ) -> tuple[dict[str, Array], dict[str, dict[str, Vector]]]:
        """Returns arrays by buffer, and vectors by name; fills the tables.

        Args:
            collect: what each payload holds of its machine, in this order.
            payloads: one for each machine; None where nothing was collected.
            tables: the trace table at the end of each payload; none if nothing was traced.
        """
        arrays = {name: self._empty(parse_buffer(name)) for name in collect if name not in VECTORS}
        parameters, dtype = self.plan.graph.parameters.values(), master(self.plan.precision)
        vectors = {
            name: {p.name: np.zeros(p.shape, dtype) for p in parameters}
            for name in collect
            if name in VECTORS
        }
        for machine, payload in enumerate(payloads):
            if payload is not None:
                taken = [self._target(machine, name, arrays, vectors) for name in collect]
                targets = [target for target, _ in taken if target is not None]
                payload.copy_into(*targets, *tables[machine : machine + 1])
                for _, finish in taken:
                    finish()
        return {name: upcast_array(array) for name, array in arrays.items()}, vectors

    def _empty(self, buffer: Buffer) -> Array:
        dtype = storage(self.plan.sizes.row(buffer)[1])
        if self._adds_up(buffer):
            dtype = upcast_array(np.zeros(0, dtype)).dtype
        return np.zeros((*self.plan.graph[buffer.layer].shape, self.plan.batch), dtype)

    def _adds_up(self, buffer: Buffer) -> bool:
        """Whether several machines hold shares of a row: of gradients of copied rows, of a loss in shards."""
        return buffer.edge is not None or bool(self.plan.ownership.loss_shards(buffer.layer))

    def _target(
        self,
        machine: int,
        name: str,
        arrays: Mapping[str, Array],
        vectors: Mapping[str, dict[str, Vector]],
    ) -> tuple[Array | None, Callable[[], object]]:
        """Where a machine's share is copied to (None: it has none), and what puts it into the whole."""
        if name in vectors:
            vector = np.zeros(self.layout.machine_size(machine), master(self.plan.precision))
            return vector, partial(scatter, self.layout.machines[machine], vector, vectors[name])
        buffer = parse_buffer(name)
        rows = self.plan.ownership.rows(buffer.layer, machine)
        if not rows:
            return None, _nothing
        own = arrays[name][rows.hull.slices]
        adds = self._adds_up(buffer)
        if not adds and own.flags.c_contiguous:
            return own, _nothing
        share = np.zeros(own.shape, storage(self.plan.sizes.row(buffer)[1]))
        return share, partial(_put, own, share, adds=adds)


def _put(place: Array, numbers: Array, *, adds: bool) -> None:
    if adds:
        place += upcast_array(numbers)
    else:
        np.copyto(place, numbers)


def _nothing() -> None:
    pass
