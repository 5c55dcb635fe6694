"""Checkpoints and journals that the tests of files read."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from partita.engine.parameters import (
    Checkpoints,
    Journal,
    JournalHeader,
    Layout,
    Manifest,
    ShardRecord,
    ShardSnapshot,
    Slot,
    gather,
)
from partita.engine.protocol.coordinator_effects import ShardFile

SHAPES = {"hidden.weight": (4, 3), "hidden.bias": (4,), "scores/odd:name": (2, 2)}


MACHINES = (
    (Slot("hidden.weight", 0, 6), Slot("hidden.bias", 0, 2)),
    (Slot("hidden.weight", 6, 12), Slot("hidden.bias", 2, 4), Slot("scores/odd:name", 0, 4)),
)


def whole(base: float) -> dict[str, Any]:
    return {
        name: (base + 100 * index + np.arange(np.prod(shape))).reshape(shape).astype(np.float32)
        for index, (name, shape) in enumerate(SHAPES.items())
    }


def write(
    checkpoints: Checkpoints,
    number: int,
    *,
    shards: int = 2,
    run: str = "run",
    base: float = 0.0,
    incarnation: int = 0,
) -> Manifest:
    """A checkpoint of values base, base + 1 ..., with the squares in "sum"."""
    layout = Layout(MACHINES, SHAPES, shards)
    entries = []
    for shard in range(shards):
        values = gather(layout.slots_of(shard), whole(base))
        seen = {"part 0.0": (0, 6 + shard)}
        record = ShardRecord(run, f"shard {shard}", incarnation, 7 + shard, seen, updates=50 + shard)
        snapshot = ShardSnapshot(values, {"sum": values * values})
        file, sha256 = checkpoints.write_shard(number, record, layout.slots_of(shard), snapshot)
        entries.append(ShardFile(record.shard, record.incarnation, record.version, file, sha256))
    manifest = Manifest(
        checkpoint=number,
        run=run,
        shapes=SHAPES,
        dtype="float32",
        optimizer="Adagrad(rate=0.05)",
        steps=(40, 42),
        units_per_epoch=16,
        entries=tuple(entries),
    )
    checkpoints.commit(manifest)
    return manifest


HEADER = JournalHeader(
    run="run",
    first_checkpoint=3,
    start="0" * 64,
    shapes={"hidden.weight": (4, 3), "hidden.bias": (4,)},
    precision="float32",
    method="LBFGS(history=10)",
    data="1234abcd",
    examples=256,
    portion=16,
    unit_size=4,
    batch=None,
    overlap=0,
    l2=0.1,
    seed=7,
)


ENTRIES = [(), (1.0,), (0.1, -0.0, math.inf), (5e-324, -1.7976931348623157e308)]


def write_journal(path: Path, entries: list[tuple[float, ...]] = ENTRIES) -> None:
    journal = Journal.create(path, HEADER)
    for index, scalars in enumerate(entries):
        journal.append(index, index << 60, scalars)
    journal.close()
