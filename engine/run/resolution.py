"""`train_by_resolution`: training on small pictures first, whose parameters larger pictures go on with.

A convolutional network whose last pictures are pooled over all places has the same parameters at every
resolution. A step on pictures of half the height and width has about a quarter of the operations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from partita.engine.kernels.kernel import Array
from partita.engine.parameters.files import shape_difference
from partita.engine.run.data import Data, check_plan
from partita.engine.run.run import Run
from partita.engine.run.train import train
from partita.layers.checks import check_whole
from partita.partitioner.plan import Plan


def train_by_resolution(
    plan: Callable[[int], Plan],
    data: Callable[[int], Data],
    *,
    resolutions: Sequence[int],
    epochs: Sequence[int],
    validation: Callable[[int], Data] | None = None,
    initial: Any = None,
    **settings: Any,
) -> Run:
    """Trains at one resolution after the other; each begins with the parameters of the one before.

    Args:
        plan: returns the plan of the network for pictures of a resolution.
        data: returns the data of a resolution, as `train` takes it; see `shrink_pictures`.
        resolutions: height and width of the pictures in each stage, for example (8, 16, 32).
        epochs: passes over the data in each stage.
        validation: returns the validation data of a resolution.
        initial: parameters to start from, see `train`.
        **settings: of every stage, as `train` takes them, for example `driver`. The state of an optimizer,
            and a schedule of its learning rate, begin anew in each stage.

    Returns:
        The run of the last stage, with the history of all.

    Raises:
        ValueError: there are no stages, or not as many numbers of epochs; networks of two resolutions differ
            in their parameters; or a stage cannot be trained.
    """
    if not resolutions or len(resolutions) != len(epochs):
        raise ValueError(
            f"resolutions are {tuple(resolutions)} and epochs {tuple(epochs)}; give one or more "
            "resolutions, and a number of epochs for each"
        )
    sizes = [check_whole(size, "a resolution is") for size in resolutions]
    plans = [plan(size) for size in sizes]
    for size, one in zip(sizes, plans, strict=True):
        check_plan(one)
        _check_same(plans[0], one, sizes[0], size)
    run: Run | None = None
    for size, one, count in zip(sizes, plans, epochs, strict=True):
        held_out = {} if validation is None else {"validation": validation(size)}
        start = initial if run is None else run.parameters
        after = train(one, data(size), epochs=count, initial=start, **held_out, **settings)
        run = after if run is None else after.following(run)
    assert run is not None
    return run


def _check_same(first: Plan, other: Plan, size: int, other_size: int) -> None:
    """Refuses networks whose parameters differ. Raises ValueError."""
    shapes, others = (
        {name: parameter.shape for name, parameter in plan.graph.parameters.items()}
        for plan in (first, other)
    )
    why = shape_difference(others, shapes)
    if why is not None:
        raise ValueError(
            f"the parameters at {other_size} pixels are not those at {size}: {why}; share weights over "
            "places, as Conv2D does, and pool over all places before dense layers, for example by "
            "GlobalAveragePool"
        )


def shrink_pictures(pictures: Array, size: int) -> Array:
    """Shrinks pictures to a height and width by the means of equal squares.

    Args:
        pictures: `[example, height, width, channels]`.
        size: pixels; height and width are multiples of it.

    Returns:
        `[example, size, size, channels]` of the same floating-point type; whole numbers become float32.

    Raises:
        ValueError: these are no pictures, or their height or width is no multiple.
    """
    if pictures.ndim != 4:
        raise ValueError(
            f"the pictures have shape {pictures.shape}; give an array [example, height, width, channels]"
        )
    n, height, width, channels = pictures.shape
    size = check_whole(size, "the size is")
    if height % size or width % size:
        raise ValueError(
            f"pictures of {height} x {width} pixels have no equal squares for {size} x {size}; give a divisor"
        )
    squares = pictures.reshape(n, size, height // size, size, width // size, channels)
    dtype = pictures.dtype if pictures.dtype.kind == "f" else np.dtype(np.float32)
    return np.asarray(squares.mean(axis=(2, 4), dtype=np.float64).astype(dtype))
