"""Forms of tiles on this machine: each operation of layers on patches in every form that a calibration tries.

    python -m benchmarks.tile_forms [--rounds N]

The loops are those of `partita calibrate`, on one thread. In a round the forms take turns; a call's
processor time counts, of which other work on the machine changes least. The ratio is the median over the
rounds of the rule's time over that of another form, with its spread: above 1 the other form is faster.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Final

from benchmarks._harness import in_turn, options, print_table, ratios, spread
from benchmarks._machine import describe
from partita.engine.kernels import Call, KernelContext
from partita.engine.kernels.tiles.choice import loop_of
from partita.engine.kernels.tiles.forms import candidates, tile_of
from partita.engine.profile.products import ROUND_S
from partita.engine.profile.tiled_loops import loops_of
from partita.layers import Conv2D, Layer, LocallyConnected2D, Network
from partita.partitioner.cluster.tile_forms import TILED_OPERATIONS, TiledLoop, TiledOperation

_FIRST: Final = LocallyConnected2D(8, 10, stride=2)
_LAYERS: Final[tuple[tuple[str, Layer, tuple[int, int, int], int, str], ...]] = (
    ("first image layer", _FIRST, (100, 100, 3), 8, "float32"),
    ("first image layer", _FIRST, (100, 100, 3), 32, "float32"),
    ("first image layer", _FIRST, (100, 100, 3), 128, "float32"),
    ("first image layer", _FIRST, (100, 100, 3), 32, "bfloat16"),
    ("local, small", LocallyConnected2D(4, 3), (12, 12, 2), 16, "float32"),
    ("convolution", Conv2D(32, 3, padding="same"), (28, 28, 16), 64, "float32"),
    ("convolution", Conv2D(32, 3, padding="same"), (28, 28, 16), 64, "bfloat16"),
)
"""Names, layers, their inputs, examples and precisions: those of the image networks."""


def loop(
    layer: Layer, shape: tuple[int, int, int], batch: int, precision: str, operation: TiledOperation
) -> TiledLoop:
    """Returns an operation of a layer, as a calibration knows it."""
    net = Network("benchmark")
    name = layer(net.input("x", shape=shape)).name
    grid, source = net.graph()[name], net.graph()["x"]
    windows = ((0, source.n_rows),)
    context = KernelContext(grid, (0, grid.n_rows), (source,), windows, windows, batch, precision)
    return loop_of(context, operation, shared=isinstance(layer, Conv2D))


def quickest(call: Call) -> float:
    """Returns processor seconds of the quickest of some calls, milliseconds long in all."""
    seconds, until = float("inf"), time.process_time() + ROUND_S
    while (began := time.process_time()) < until or seconds == float("inf"):
        call()
        seconds = min(seconds, time.process_time() - began)
    return seconds


def main() -> None:
    """Prints a row for each operation."""
    assert __doc__ is not None
    arguments = options(__doc__, rounds=9, measurements=len(_LAYERS) * len(TILED_OPERATIONS))
    forms, lines = candidates(), []
    print(describe(), flush=True)
    for name, layer, shape, batch, precision in _LAYERS:
        for operation in TILED_OPERATIONS:
            loops = loops_of(loop(layer, shape, batch, precision, operation))
            calls = {str(form): loops.prepare(tile_of(form))[0] for form in forms}
            for call in calls.values():
                call()  # what is done once is not counted
            timed = {form: partial(quickest, call) for form, call in calls.items()}
            found = in_turn(timed, rounds=arguments.rounds, rest_s=0.0)
            usual, *others = found.values()
            milliseconds = spread([1e3 * seconds for seconds in usual], digits=2)
            gains = (spread(ratios(usual, seconds), digits=2) for seconds in others)
            lines.append((f"{name} x{batch} {precision}, {operation}", milliseconds, *gains))
            print(*lines[-1], sep=" | ", flush=True)
    print_table("forms of tiles", ("operation", f"{forms[0]}, ms", *map(str, forms[1:])), lines)


if __name__ == "__main__":
    main()
