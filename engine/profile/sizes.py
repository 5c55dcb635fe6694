"""Chooses the parts that are benchmarked, so that the kernels of any piece are known or interpolated.

The plans have a network whole, and every layer of it in 2, 4, 8 equal pieces and so on, as long as a piece is
worth cutting and the part fits into memory. Layers that split their sum are cut by rows, and a second time by
their inputs: every second one so that each part has all activations.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

import psutil

from partita.engine.profile.kernel_benchmark import BenchmarkPart
from partita.layers.graph import Graph
from partita.layers.losses import Loss
from partita.partitioner import Cluster, InputSplit, Plan, RowSplit, StepKind, Whole, partition
from partita.partitioner.assign.cuts import Cut
from partita.partitioner.cluster.work import Work
from partita.partitioner.ir.program import COMPUTES

MOST_PIECES: Final = 64
LEAST_REFERENCE_S: Final = 1e-3
"""Seconds of a part's kernels on the reference machine below which it is not cut any further."""
SHARE_OF_MEMORY: Final = 0.6
"""Fraction of the free memory that benchmarks may take."""


def plans_of_all_sizes(graph: Graph, *, batch: int, precision: str, threads: int) -> Iterator[Plan]:
    """Yields plans of the network whole, and in more and more pieces."""
    pieces = 1
    while pieces <= MOST_PIECES:
        cluster = Cluster.local(pieces, threads=threads)
        cut = partial(partition, graph, cluster, batch=batch, strategy="balanced", precision=precision)
        plan, inputs = cut(cuts=_by_rows(graph, pieces)), _by_inputs(graph, pieces)
        if _fits(plan):
            yield plan
            if inputs:
                yield cut(cuts={**_by_rows(graph, pieces), **inputs})
        if sum(work.reference_s for work in works(BenchmarkPart(plan, 0)).values()) < LEAST_REFERENCE_S:
            return
        pieces *= 2


def works(part: BenchmarkPart) -> dict[int, Work]:
    """Returns the work of a part's kernels, by the positions of their instructions."""
    program = part.plan.programs_for(part.kind)[part.machine]
    return {
        position: part.plan.costs.work(instruction, part.machine)
        for position, instruction in enumerate(program.instructions)
        if instruction.op in COMPUTES
    }


def groups(plan: Plan, kind: StepKind, *, size: int) -> Iterator[tuple[BenchmarkPart, ...]]:
    """Yields the parts of a plan in groups that are timed side by side; a group that is too small repeats
    parts.
    """
    parts = [m for m, program in enumerate(plan.programs_for(kind)) if program.instructions]
    for start in range(0, len(parts), size):
        group = parts[start : start + size]
        yield tuple(BenchmarkPart(plan, group[n % len(group)], kind) for n in range(size))


def _by_rows(graph: Graph, pieces: int) -> dict[str, Cut]:
    return {
        grid.name: RowSplit(min(pieces, grid.n_rows)) if grid.layer.cuttable else Whole(0)
        for grid in graph.computed
        if not (isinstance(grid.layer, Loss) and grid.layer.splits_scores)
    }


def _by_inputs(graph: Graph, pieces: int) -> dict[str, Cut]:
    """Cuts by inputs, for layers that have as many inputs as pieces."""
    dense = [grid for grid in graph.computed if grid.layer.splits_sum and pieces > 1]
    rows = {grid.name: min(grid.n_rows, graph[grid.sources[0]].n_rows) for grid in dense}
    return {
        grid.name: InputSplit(pieces, replicated=n % 2 == 0)
        for n, grid in enumerate(dense)
        if rows[grid.name] >= pieces
    }


def _fits(plan: Plan) -> bool:
    free = SHARE_OF_MEMORY * psutil.virtual_memory().available
    return bool(2 * plan.memory_bytes(0, driver="session", optimizer_vectors=0) < free)
