"""Finds out in which form of tiles an operation of a layer on patches is computed fastest.

As for products of matrices, only a calibration asks, on a quiet machine, and a form replaces the rule's only
if it is faster by a margin in each of several rounds. The loops are the layer's own, on one thread. All forms
compute the same bits, which is checked.
"""

from __future__ import annotations

import time

import msgspec
import numpy as np

from partita.engine.kernels.kernel import Call
from partita.engine.kernels.tiles.forms import candidates, tile_of
from partita.engine.profile.products import Clock, chosen_of, rounds
from partita.engine.profile.tiled_loops import loops_of
from partita.partitioner.cluster.tile_forms import TiledLoop, TileForm


class TileMeasurement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Seconds of an operation in every form.

    Args:
        loop: the operation.
        seconds: seconds of the median round, by form; that of the rule first.
        form: the form in which it is computed from now on.
    """

    loop: TiledLoop
    seconds: tuple[tuple[TileForm, float], ...]
    form: TileForm

    @property
    def is_new(self) -> bool:
        """Returns whether the form is another than the rule's."""
        return self.form != self.seconds[0][0]


def measure_tiles(loop: TiledLoop, *, clock: Clock = time.perf_counter) -> TileMeasurement | None:
    """Measures an operation in every form that this processor has code for.

    Args:
        loop: the operation.
        clock: returns seconds.

    Returns:
        None where the machine was not quiet meanwhile.

    Raises:
        ArithmeticError: two forms compute different bits.
    """
    forms, layer = candidates(), loops_of(loop)
    calls: dict[TileForm, Call] = {}
    results = set()
    for form in forms:
        calls[form], result = layer.prepare(tile_of(form))
        calls[form]()  # what is done once (pages, code) is not counted
        results.add(result.tobytes())
    if len(results) > 1:
        raise ArithmeticError(
            f"tiles of different forms do not agree on the {loop.operation} of {loop}: no form may change a "
            "bit; report this with the versions that `partita calibrate` prints"
        )
    seconds = rounds(calls, clock=clock)
    chosen = chosen_of(seconds, forms[0])
    if chosen is None:
        return None
    typical = tuple((form, float(np.median(taken))) for form, taken in seconds.items())
    return TileMeasurement(loop=loop, seconds=typical, form=chosen)
