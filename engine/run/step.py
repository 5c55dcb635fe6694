"""The results of a session's step, made of the answers of its parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from partita.engine.kernels.kernel import Array
from partita.engine.numerics import master, storage, upcast_array
from partita.engine.parameters.layout import Layout, scatter
from partita.engine.parameters.vector import Vector
from partita.engine.protocol.clocks import Offset
from partita.engine.protocol.session_messages import Play
from partita.engine.runtime.reported_sums import ReportedSums
from partita.engine.runtime.session import PartStep
from partita.engine.runtime.trace import PartTrace, StepTrace, table_shape
from partita.partitioner.ir.buffer import Buffer, parse_buffer
from partita.partitioner.ir.program import Program
from partita.partitioner.plan import Plan

VECTORS = ("parameters", "gradient")
"""Names that stand for whole vectors; all others are buffers."""


@dataclass(frozen=True)
class Sent:
    """Messages that a part has sent to other parts in a step, and bytes of their tensors."""

    messages: int
    n_bytes: int


@dataclass(frozen=True)
class Step:
    """Results of a step.

    Args:
        loss: mean loss of the real examples; NaN where no loss was computed.
        correct: number of examples that the losses found right.
        step_s: seconds of the slowest part.
        busy_s: seconds in kernels, for each part.
        sent: messages of each part to others.
        collected: collected activations and gradients of outputs, by buffer: node-major, `[*grid, batch]`.
        vectors: collected parameters or gradients, whole, by their name: "gradient" -> {"dense.weight": ...}.
        trace: trace of each part, if one was requested.
        losses: mean of each loss, without its weight, where there are several.
        labels: number of labels that can be right: of the examples, or of their positions, less ignored ones.
    """

    loss: float
    correct: int
    step_s: float
    busy_s: tuple[float, ...]
    sent: tuple[Sent, ...]
    collected: Mapping[str, Array] = field(default_factory=dict)
    vectors: Mapping[str, dict[str, Vector]] = field(default_factory=dict)
    trace: StepTrace | None = None
    losses: Mapping[str, float] = field(default_factory=dict)
    labels: int = 0


@dataclass(frozen=True)
class Collector:
    """Joins the results of a plan's parts.

    Args:
        plan: the plan that the parts play.
        layout: where each machine's parameters lie.
        programs: of the parts.
    """

    plan: Plan
    layout: Layout
    programs: Sequence[Program]

    def step(self, order: Play, parts: Sequence[PartStep], clocks: Sequence[Offset]) -> Step:
        """Returns the results of a step.

        Args:
            order: as the parts had it.
            parts: the answer of each part; its payload has the collected arrays in the order of their names.
            clocks: of the parts, for a trace.
        """
        arrays = {name: self._empty(parse_buffer(name)) for name in order.collect if name not in VECTORS}
        parameters, dtype = self.plan.graph.parameters.values(), master(self.plan.precision)
        vectors = {
            name: {p.name: np.zeros(p.shape, dtype) for p in parameters}
            for name in order.collect
            if name in VECTORS
        }
        tables = [np.empty(table_shape(program)) for program in self.programs] if order.trace else []
        for machine, (_, payload) in enumerate(parts):
            if payload is not None:
                taken = [*self._targets(machine, order.collect, arrays, vectors)]
                payload.copy_into(*(share for share, _ in taken), *tables[machine : machine + 1])
                for _, finish in taken:
                    finish()
        traces = zip(self.programs, tables, clocks, strict=True) if order.trace else ()
        played = [part.played for part in parts]
        reported = ReportedSums.of(self.plan.graph)
        found = [one.sums for one in played if one.sums]
        sums = np.sum(found, axis=0).tolist() if found else [0.0] * len(reported)
        return Step(
            sum(one.loss for one in played) / order.examples if self.plan.graph.losses else float("nan"),
            sum(one.correct for one in played),
            max(one.step_s for one in played),
            tuple(one.busy_s for one in played),
            tuple(Sent(one.sent_messages, one.sent_bytes) for one in played),
            {name: upcast_array(array) for name, array in arrays.items()},
            vectors,
            StepTrace(tuple(PartTrace.of(*part) for part in traces)) if order.trace else None,
            reported.figures(sums),
            int(reported.answers(sums, order.examples)),
        )

    def _empty(self, buffer: Buffer) -> Array:
        dtype = storage(self.plan.sizes.row(buffer)[1])
        if self._adds_up(buffer):
            dtype = upcast_array(np.zeros(0, dtype)).dtype
        return np.zeros((*self.plan.graph[buffer.layer].shape, self.plan.batch), dtype)

    def _adds_up(self, buffer: Buffer) -> bool:
        """Returns whether several machines hold shares of a row: of gradients of copied rows, of a loss in
        shards.
        """
        return buffer.edge is not None or bool(self.plan.ownership.loss_shards(buffer.layer))

    def _targets(
        self,
        machine: int,
        collect: Sequence[str],
        arrays: Mapping[str, Array],
        vectors: Mapping[str, dict[str, Vector]],
    ) -> Iterator[tuple[Array, Callable[[], object]]]:
        """Yields where each of a machine's shares is copied to, and what puts it into the whole."""
        for name in collect:
            if name in vectors:
                vector = np.zeros(self.layout.machine_size(machine), master(self.plan.precision))
                yield vector, partial(scatter, self.layout.machines[machine], vector, vectors[name])
                continue
            buffer = parse_buffer(name)
            if rows := self.plan.ownership.rows(buffer.layer, machine):
                own, adds = arrays[name][rows.hull.slices], self._adds_up(buffer)
                direct = own.flags.c_contiguous and not adds
                share = own if direct else np.zeros(own.shape, storage(self.plan.sizes.row(buffer)[1]))
                yield share, partial(_put, own, share, adds=adds)


def _put(place: Array, share: Array, *, adds: bool) -> None:
    if adds:
        place += upcast_array(share)
    elif share is not place:
        np.copyto(place, share)
