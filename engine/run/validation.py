"""Validation of a training: the held-out data, and when the training stops for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from partita.engine.data.columns import Columns
from partita.engine.data.conversion import stored_type
from partita.engine.data.prepared import HostData
from partita.engine.drivers.paced import Pacing
from partita.engine.drivers.trainer import Trainer
from partita.engine.files.sources import ArrayFile, DataSource
from partita.engine.run.callbacks.dispatch import Callbacks, OnlyRecords
from partita.engine.run.data import RunData, run_data
from partita.engine.run.train_arguments import TrainArguments
from partita.engine.runtime.metric import Metric
from partita.engine.runtime.validation import ValidationData
from partita.partitioner.plan import Plan


def callbacks_of(given: TrainArguments) -> Callbacks:
    """Returns the callbacks of a call; `on_record` is one of them."""
    records = () if given.on_record is None else (OnlyRecords(given.on_record),)
    return Callbacks((*records, *given.callbacks), given.max_s)


def pacing_of(
    given: TrainArguments, trainer: Trainer, callbacks: Callbacks, validation: ValidationData | None
) -> Pacing:
    """Returns when a training stops. A limit of steps is one of the last training of the call."""
    return Pacing(
        minibatches=0 if validation is None else validation.minibatches,
        asks=callbacks.has("on_epoch"),
        every=given.validate_every,
        every_s=given.validate_every_s,
        most=given.max_steps if type(trainer.driver) is type(given.driver) else None,
    )


def divided(
    given: TrainArguments, data: RunData, folder: Path, note: Callable[[str], object]
) -> tuple[RunData, RunData | None]:
    """Returns the data of the training, and the validation data.

    Args:
        given: the arguments of the call.
        data: all data.
        folder: for a copy of what only this process can read.
        note: called with a line where data is copied.

    Raises:
        ValueError: the data does not fit the network, or a fraction of it cannot be held out.
    """
    plan, asked = given.plan, given.validation
    if asked is None:
        return data, None
    if not isinstance(asked, int | float):
        (folder / "validation").mkdir()
        settings: dict[str, Any] = {"precision": plan.precision, "batch": plan.batch, "note": note}
        held_out = run_data(
            plan.graph, asked, targets=True, folder=folder / "validation", seed=given.seed, **settings
        )
        return data, held_out
    if data.sources or data.prepared is not None:
        what = ", ".join(sorted(data.sources)) or "the data"
        raise ValueError(
            f"validation={asked} holds out examples of arrays, and {what} is a source; give the validation "
            "data itself"
        )
    examples = data.examples
    held = round(asked * examples)
    if not 0 < held < examples:
        raise ValueError(
            f"validation={asked} holds out {held} of {examples} examples; leave some for both, or give the "
            "validation data itself"
        )
    chosen = np.zeros(examples, bool)
    chosen[np.random.default_rng([given.seed, 2]).permutation(examples)[:held]] = True
    rest = RunData({name: array[~chosen] for name, array in data.arrays.items()})
    own = {name: array for name, array in data.arrays.items() if name in plan.graph}  # and no weights
    return rest, RunData({name: array[chosen] for name, array in own.items()})


def validation_data(plan: Plan, given: RunData, folder: Path, metrics: tuple[Metric, ...]) -> ValidationData:
    """Writes the arrays where every host can read them."""
    grids = {grid.name: grid for grid in (*plan.graph.inputs, *plan.graph.targets)}
    sources: dict[str, DataSource] = {}
    for name, array in given.arrays.items():
        dtype = array.dtype
        if name in grids and not (given.prepared and given.prepared.transforms):
            dtype = stored_type(grids[name], dtype, plan.precision)
        file = ArrayFile(folder / f"{name.replace('/', '-')}@validation.data", dtype, array.shape)
        file.write(array)
        sources[name] = file
    for name, source in given.sources.items():
        if isinstance(source, ArrayFile):
            source = replace(source, named=f"{source.name}@validation")
        sources[name] = source
    data: HostData = sources
    if given.prepared is not None:
        data = given.prepared if not sources else replace(given.prepared, dataset=Columns(sources))
    return ValidationData(plan, data, given.examples, metrics)
