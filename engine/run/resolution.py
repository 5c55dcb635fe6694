"""`train_by_resolution`: training on small pictures first, whose parameters larger pictures go on with.

A convolutional network whose last pictures are pooled over all places has the same parameters at every
resolution. A step on pictures of half the height and width has about a quarter of the operations. Each
resolution is a phase: a training of its own, with a plan, a driver and a folder of checkpoints of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from partita.engine.drivers.driver import Driver
from partita.engine.files.stores import CheckpointStore, store_of
from partita.engine.files.temporary import temporary_folder
from partita.engine.kernels.kernel import Array
from partita.engine.parameters.files import shape_difference
from partita.engine.parameters.log import log_folders
from partita.engine.run.data import Data, check_plan
from partita.engine.run.phases import Show
from partita.engine.run.run import Run
from partita.engine.run.train import train
from partita.layers.checks import check_whole
from partita.layers.text import counted
from partita.partitioner.plan import Plan
from partita.partitioner.text import readable_seconds


class _Phase(NamedTuple):
    """Training at one resolution: the plan, the driver, passes over the data, and where it keeps files."""

    size: int
    plan: Plan
    driver: Driver
    epochs: int
    store: CheckpointStore | None

    def text(self, number: int, count: int) -> str:
        """The line that is shown when the phase begins; `number` counts from 1."""
        machines = counted(len(self.plan.cluster), "machine")
        step = readable_seconds(self.plan.predicted_step_s)
        return (
            f"phase {number} of {count}: {self.size} x {self.size} pixels, {counted(self.epochs, 'epoch')}, "
            f"batch {self.plan.batch} on {machines}, {step} a step predicted"
        )

    def begun(self) -> bool:
        """Returns whether an earlier call has left something of this phase. Raises OSError, ValueError."""
        if self.store is None:
            return False
        with temporary_folder("resolution") as folder:
            found = self.store.checkpoints(folder)
            return bool(found.complete() or log_folders(found.folder))


def train_by_resolution(
    plan: Callable[[int], Plan],
    data: Callable[[int], Data],
    *,
    resolutions: Sequence[int],
    epochs: Sequence[int],
    driver: Driver | Callable[[int], Driver],
    validation: Callable[[int], Data] | None = None,
    initial: Any = None,
    checkpoints: str | Path | CheckpointStore | None = None,
    resume: bool = False,
    show: Show = "auto",
    **settings: Any,
) -> Run:
    """Trains at one resolution after the other; each begins with the parameters of the one before.

    Args:
        plan: returns the plan of the network for pictures of a resolution.
        data: returns the data of a resolution, as `train` takes it; see `shrink_pictures`.
        resolutions: height and width of the pictures in each phase, for example (8, 16, 32).
        epochs: passes over the data in each phase.
        driver: of all phases, or a function that returns that of a resolution: for a learning rate that falls
            at full resolution alone. The state of an optimizer, and a schedule of its learning rate, begin
            anew in each phase.
        validation: returns the validation data of a resolution.
        initial: parameters to start from, see `train`.
        checkpoints: folder, or store, see `train`. Each phase has a folder in it: `phase-1-8-pixels`.
        resume: go on in the last phase that has left checkpoints; those before it are not trained again, and
            their history is not in the result.
        show: see `train`; unless "nothing", each phase begins with a line.
        **settings: of every phase, as `train` takes them, for example `seed` or `max_steps`.

    Returns:
        The run of the last phase, with the history of all that were trained.

    Raises:
        ValueError: there are no phases, or not as many numbers of epochs; networks of two resolutions differ
            in their parameters; a phase cannot be trained; or its folder holds an earlier run, see `train`.
    """
    phases = _phases(plan, resolutions, epochs, driver, store_of(checkpoints))
    first = next((n for n in reversed(range(len(phases))) if phases[n].begun()), 0) if resume else 0
    run: Run | None = None
    for number, phase in enumerate(phases[first:], first + 1):
        if show != "nothing":
            print(phase.text(number, len(phases)), flush=True)
        held_out = {} if validation is None else {"validation": validation(phase.size)}
        after = train(
            phase.plan,
            data(phase.size),
            driver=phase.driver,
            epochs=phase.epochs,
            initial=initial if run is None else run.parameters,
            checkpoints=phase.store,
            resume=resume,
            show=show,
            **held_out,
            **settings,
        )
        run = after if run is None else after.following(run)
    assert run is not None
    return run


def _phases(
    plan: Callable[[int], Plan],
    resolutions: Sequence[int],
    epochs: Sequence[int],
    driver: Driver | Callable[[int], Driver],
    store: CheckpointStore | None,
) -> list[_Phase]:
    """Makes and checks all phases, before the first one is trained. Raises ValueError."""
    if not resolutions or len(resolutions) != len(epochs):
        raise ValueError(
            f"resolutions are {tuple(resolutions)} and epochs {tuple(epochs)}; give one or more "
            "resolutions, and a number of epochs for each"
        )
    phases: list[_Phase] = []
    for number, (given, count) in enumerate(zip(resolutions, epochs, strict=True), 1):
        size = check_whole(given, "a resolution is")
        one = plan(size)
        check_plan(one)
        kept = None if store is None else store.within(f"phase-{number}-{size}-pixels")
        phases.append(_Phase(size, one, _driver_at(size, driver), check_whole(count, "epochs are"), kept))
        _check_same(phases[0].plan, one, phases[0].size, size)
    return phases


def _driver_at(size: int, driver: Any) -> Driver:
    """The driver of a resolution. Raises ValueError."""
    found = driver(size) if callable(driver) and not isinstance(driver, Driver) else driver
    if not isinstance(found, Driver):
        raise ValueError(
            f"the driver at {size} pixels is {found!r}; give a driver, or a function of the resolution "
            "that returns one, for example lambda size: AllReduce()"
        )
    return found


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
