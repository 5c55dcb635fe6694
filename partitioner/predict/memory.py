"""Memory of a part besides its windows: vectors, and the scratch that can be stated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from partita.partitioner.assign.ownership import Ownership
from partita.partitioner.assign.parameter_slice import ParameterSlice
from partita.partitioner.ir.program import Program
from partita.partitioner.ir.sizes import Sizes
from partita.partitioner.ir.step_kind import StepKind
from partita.partitioner.predict.work import GRADIENT_BLOCK_BYTES

Driver: TypeAlias = Literal["session", "downpour"]
"""The driver that plays a part: Downpour also keeps gradients accumulated and in flight."""


def vector_bytes(
    sizes: Sizes, n_parameters: int, kind: StepKind, *, driver: Driver, optimizer_vectors: int
) -> int:
    """Bytes of the vectors that are as long as the machine's parameters.

    These are the parameters, and in bfloat16 and float16 the copy that kernels read; in training also the
    gradient where it is whole, the optimizer's state, and Downpour's gradients.

    Args:
        sizes: sizes of the network.
        n_parameters: number of parameters that the machine owns.
        kind: the kind of steps.
        driver: the driver that plays them.
        optimizer_vectors: number of such vectors in the optimizer's state.
    """
    copied = n_parameters * 2 if sizes.precision != sizes.master else 0
    vectors = 1
    if kind.train:
        vectors += optimizer_vectors + (kind.gradients == "whole") + 2 * (driver == "downpour")
    return vectors * n_parameters * sizes.master_bytes + copied


def scratch_bytes(owned: Ownership, program: Program, sizes: Sizes, *, threads: int) -> int:
    """Bytes of the largest block of gradients that a FUSED_UPDATE needs."""
    if not program.kind.train or program.kind.gradients == "whole":
        return 0
    apart = owned.graph.tied
    layers = (g for g in owned.graph.computed if g.name not in apart and not owned.weight_receivers(g.name))
    held = (owned.parameter_slices(grid.name, program.machine) for grid in layers)
    return max((_block_bytes(found, sizes, threads=threads) for found in held if found), default=0)


def _block_bytes(held: Sequence[ParameterSlice], sizes: Sizes, *, threads: int) -> int:
    start, stop = held[0].box[0]
    arrays = (one for one in held if not (one.parameter.sparse and one.parameter.trainable))
    whole = sum(one.size for one in arrays) * sizes.master_bytes
    if held[0].parameter.shared or not whole:
        return whole
    rows = max(1, min(stop - start, GRADIENT_BLOCK_BYTES * threads * (stop - start) // whole))
    return rows * whole // (stop - start)
