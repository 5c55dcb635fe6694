"""Products of layers whose nodes listen to the whole input: as those of `local_loops`, for one place.

Arrays are flat; their axes are: sums and errors `[node, example]`, inputs `[sender, example]`, weights
`[node, sender]`. A sum is a chain of fused multiply-adds: over senders, receivers or examples, in their
order.
"""

from __future__ import annotations

from typing import NamedTuple

from partita.engine.kernels.kernel import Array
from partita.engine.kernels.products.tiles import multiply_blocks, turned_lanes
from partita.engine.kernels.tiles.transposition import transpose
from partita.engine.kernels.tiles.vector_products import Extent, Walk
from partita.engine.numerics import NO, compiled, downcast, upcast


class Full(NamedTuple):
    """Nodes of a machine, senders that each of them hears, and examples."""

    nodes: int
    senders: int
    batch: int


@compiled
def full_sums(out: Array, x: Array, weight: Array, start: int, stop: int, f: Full) -> None:
    """Computes the sums of nodes `[start, stop)`, with which `out` begins."""
    multiply_blocks(
        out,
        Walk(0, f.batch, 0, 0),
        weight,
        Walk(start * f.senders, f.senders, 0, 1),
        x,
        Walk(0, 0, 0, f.batch),
        Extent(stop - start, f.batch, 1, f.senders),
        NO,
    )


@compiled
def full_errors(
    out: Array,
    sums: Array,
    weight: Array,
    delta: Array,
    senders: tuple[int, int],
    origin: int,
    accumulate: bool,
    f: Full,
) -> None:
    """Computes the errors of senders `[start, stop)`.

    Args:
        out: the errors of senders from `origin` on, as they are stored.
        sums: `out` itself, or if it is bfloat16's bits, room in float32 for as many numbers.
        weight: of the machine's nodes.
        delta: of the machine's nodes.
        senders: `(start, stop)`.
        origin: a sender.
        accumulate: whether to add to what is there.
        f: what the machine holds.
    """
    start, stop = senders
    first, last = (start - origin) * f.batch, (stop - origin) * f.batch
    in_place = out.dtype == sums.dtype
    if accumulate and not in_place:
        for i in range(first, last):
            sums[i] = upcast(out[i])
    multiply_blocks(
        sums,
        Walk(first, f.batch, 0, 0),
        weight,
        Walk(start, 1, 0, f.senders),
        delta,
        Walk(0, 0, 0, f.batch),
        Extent(stop - start, f.batch, 1, f.nodes),
        accumulate,
    )
    if not in_place:
        for i in range(first, last):
            out[i] = downcast(sums[i], out[i])


@compiled
def turned_inputs(turned: Array, x: Array, f: Full) -> None:
    """The inputs as `[example, sender]`, `turned_size` numbers, for `full_gradient`, in its type."""
    transpose(x, 0, f.batch, turned, 0, len(turned) // f.batch, f.senders, f.batch)


@compiled
def full_gradient(
    out: Array, turned: Array, delta: Array, start: int, stop: int, origin: int, f: Full, accumulate: bool
) -> None:
    """Computes the gradient of the weights of nodes `[start, stop)`, or adds it; `out` begins with node
    `origin`.
    """
    multiply_blocks(
        out,
        Walk((start - origin) * f.senders, f.senders, 0, 0),
        delta,
        Walk(start * f.batch, f.batch, 0, 1),
        turned,
        Walk(0, 0, 0, len(turned) // f.batch),
        Extent(stop - start, f.senders, 1, f.batch),
        accumulate,
    )


def turned_size(f: Full, item_bytes: int) -> int:
    """How many numbers the inputs take when they are turned."""
    return turned_lanes(f.senders, item_bytes) * f.batch
