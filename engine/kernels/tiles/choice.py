"""The tile in which a kernel multiplies: what the plan has chosen for its layer, for compiled code."""

from __future__ import annotations

from partita.engine.kernels.kernel import KernelContext
from partita.engine.kernels.patches import PatchGeometry
from partita.engine.kernels.tiles.forms import Tile, tile_of
from partita.layers.connectivity import Patch
from partita.partitioner.cluster.tile_forms import TiledLoop, TiledOperation


def tile_for(context: KernelContext, operation: TiledOperation, *, shared: bool) -> Tile:
    """Returns the tile of an operation of a layer on patches.

    Args:
        context: the kernel's.
        operation: forward, or one of the gradients.
        shared: whether all places have the same weights.
    """
    return tile_of(context.products.forms.choose(loop_of(context, operation, shared=shared)))


def loop_of(context: KernelContext, operation: TiledOperation, *, shared: bool) -> TiledLoop:
    """Returns the operation as plans know it; arguments as for `tile_for`."""
    connectivity, (source,) = context.grid.connectivity, context.sources
    assert isinstance(connectivity, Patch)
    g = PatchGeometry.of(connectivity, source.shape)
    rows, columns, filters = context.grid.shape
    return TiledLoop(
        operation,
        shared,
        (g.size_y, g.size_x),
        (g.stride_y, g.stride_x),
        (g.before_y, g.before_x),
        (g.height, g.width, g.channels),
        (rows, columns, filters),
        context.batch,
        context.precision,
    )
