"""How much memory a part takes besides its windows: vectors, and the scratch that can be stated."""

from __future__ import annotations

from typing import Literal, TypeAlias

from partita.partitioner.ownership import Ownership, Piece
from partita.partitioner.program import Program
from partita.partitioner.sizes import Sizes
from partita.partitioner.step_kind import StepKind
from partita.partitioner.work import LEARN_BLOCK_BYTES

Driver: TypeAlias = Literal["session", "downpour"]
"""Who plays the part: Downpour keeps what has accrued and what is in flight besides."""


def vector_bytes(
    sizes: Sizes, n_parameters: int, kind: StepKind, *, driver: Driver, rule_vectors: int
) -> int:
    """Bytes of the vectors that are as long as the machine's parameters.

    These are the parameters, and in bfloat16 the copy that kernels read; in training the gradient where it is
    whole, the rule's state, and what Downpour keeps.

    Args:
        sizes: of the network.
        n_parameters: how many the machine owns.
        kind: of the steps that are played.
        driver: who plays them.
        rule_vectors: how many such vectors the update rule remembers.
    """
    copied = n_parameters * 2 if sizes.precision == "bfloat16" else 0
    vectors = 1
    if kind.train:
        vectors += rule_vectors + (kind.gradients == "whole") + 2 * (driver == "downpour")
    return vectors * n_parameters * sizes.master_bytes + copied


def scratch_bytes(owned: Ownership, program: Program, sizes: Sizes, *, threads: int) -> int:
    """Bytes of the largest block of gradients that a LEARN holds."""
    if not program.kind.train or program.kind.gradients == "whole":
        return 0
    pieces = (piece for piece in owned.pieces if piece.machine == program.machine)
    blocks = (_block_bytes(owned, p, sizes, threads=threads) for p in pieces if not owned.borrowers(p.layer))
    return max(blocks, default=0)


def _block_bytes(owned: Ownership, piece: Piece, sizes: Sizes, *, threads: int) -> int:
    """A block is `LEARN_BLOCK_BYTES` for each thread, but at least a row, and at most the whole piece."""
    grid, n_rows = owned.graph[piece.layer], piece.stop - piece.start
    spans = [span for parameter in grid.parameters for span in parameter.spans(piece.rows)]
    whole = sum(stop - start for start, stop in spans) * sizes.master_bytes
    if grid.shares_weights or not whole:
        return whole
    rows = max(1, min(n_rows, LEARN_BLOCK_BYTES * threads * n_rows // whole))
    return rows * whole // n_rows
