"""What must hold when a run in the storm is over: no push lost that was not reported, none applied twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from partita.engine.parameters import Checkpoints
from partita.engine.parameters.files import load_parameters
from partita.engine.parameters.layout import Layout, gather
from partita.engine.protocol.names import machine_of
from partita.engine.runtime.buffers import layout_of
from partita.engine.runtime.feed import Sampler
from tests.faults.oracle import Oracle, Push
from tests.storm.cells import BATCH, Result, Spec, data_of, plan_of
from tests.storm.networks import FEATURES, ROWS

SHAPES: Final = {"sums.weight": (ROWS, FEATURES), "sums.bias": (ROWS,)}


class Violated(AssertionError):
    """Something that must hold does not."""


@dataclass(frozen=True)
class Counts:
    """What became of the pushes of a run.

    Args:
        acknowledged: to parts, in all lives of the run's own process.
        lost: of them, those that the shards do not hold in the end, nor their steps by another push.
        reported: what the run says of that.
        again: pushes that an earlier life of the run's own process lost, and whose steps a later one did
            again: a run counts those that it had lost at its last checkpoint, and cannot know what follows.
        doubled: units that the shards hold twice, pushed in the same life of the run's own process.
        redone: likewise, pushed in two lives.
    """

    acknowledged: int = 0
    lost: int = 0
    reported: int = 0
    again: int = 0
    doubled: int = 0
    redone: int = 0


def check_pushes(folder: Path, spec: Spec, lives: int) -> Counts:
    """Compares what was acknowledged with what the shards hold at the end.

    Raises:
        Violated: a push is lost, and not reported; or applied twice; or the parameters are not the sum of
            what the logs say.
    """
    layout = layout_of(plan_of(spec), shards=spec.shards)
    found = load_parameters(folder / "result.safetensors", SHAPES)
    units = _units(spec)
    oracles = [Oracle(folder / f"log-{life}", life=life) for life in range(lives)]
    acknowledged = {push for oracle in oracles for push in oracle.acknowledged}
    if not spec.loses():
        everything = range(len(units))
        _check_sums(layout, found, {place: units[everything].sum(0) for place in _places(layout)})
        reported = msgspec.json.decode((folder / "result.json").read_bytes(), type=Result).lost
        if reported:
            raise Violated(f"nothing is lost, and the run reports {reported} pushes")
        return Counts(len(acknowledged))
    pushed = {push: of for oracle in oracles for push, of in oracle.units.items()}
    newest = Checkpoints(folder / "checkpoints").latest(SHAPES)
    assert newest is not None
    held = _held(oracles, newest.manifest.checkpoint)
    counts, sums = _count(layout, units, pushed, held, acknowledged, newest.manifest.lost)
    _check_sums(layout, found, sums)
    if counts.doubled or counts.redone:
        raise Violated(
            f"{counts.doubled} units of one life and {counts.redone} of two lives were applied twice"
        )
    if not counts.lost <= counts.reported <= counts.lost + counts.again:
        said = f"the run reports {counts.reported}, and {counts.again} were done again"
        raise Violated(f"{counts.lost} pushes are lost that were acknowledged; {said}")
    return counts


def _units(spec: Spec) -> Any:
    """The sum of the features of each unit of work, `[unit, feature]`."""
    features, batch = data_of(spec)["features"], BATCH[spec.driver]
    sampler = Sampler(examples=len(features), batch=batch, seed=0)
    order = np.concatenate([sampler.indices(unit) for unit in range(len(features) // batch)])
    return features[order].reshape(-1, batch, FEATURES).sum(1, dtype=np.float64)


def _places(layout: Layout) -> Iterator[tuple[int, int]]:
    """Yields (machine, shard) of each range of parameters."""
    yield from ((one.machine, one.shard) for one in layout.shared_ranges)


def _held(oracles: list[Oracle], newest: int) -> dict[str, set[Push]]:
    """The pushes that each shard holds in a checkpoint."""
    files: dict[str, dict[int, set[Push]]] = {}
    for oracle in oracles:
        for shard in oracle.shards:
            files[shard] = oracle.files(shard, files.get(shard))
    return {shard: found[newest] for shard, found in files.items()}


def _count(
    layout: Layout,
    units: Any,
    pushed: Mapping[Push, tuple[int, ...]],
    held: Mapping[str, set[Push]],
    acknowledged: set[Push],
    reported: int,
) -> tuple[Counts, dict[tuple[int, int], Any]]:
    """Counts lost and doubled, and sums what the shards should hold, for each machine and shard."""
    lost: set[Push] = set()
    gone = {push for push in acknowledged if push not in held[push[0]]}
    doubled, redone = 0, 0
    sums: dict[tuple[int, int], Any] = {}
    for machine, shard in _places(layout):
        name = f"shard {shard}"
        of_lives = [
            Counter(unit for push in held[name] if _is(push, machine, life) for unit in pushed[push])
            for life in {push[4] for push in held[name]}
        ]
        twice = sum(n - 1 for times_of_life in of_lives for n in times_of_life.values())
        doubled += twice
        times = sum(of_lives, Counter())
        redone += sum(n - 1 for n in times.values()) - twice
        last: dict[int, Push] = {}  # of each unit, the acknowledged push of the latest life
        for push in sorted(acknowledged, key=lambda push: push[4]):
            if push[0] == name and machine_of(push[1]) == machine:
                last.update(dict.fromkeys(pushed[push], push))
        missing = set(range(len(units))) - times.keys()
        never = sorted(missing - last.keys())
        if never:
            raise Violated(f"{len(never)} units were never acknowledged by {name}, the first is {never[0]}")
        lost |= {last[unit] for unit in missing}
        sums[machine, shard] = sum((n * units[unit] for unit, n in times.items()), np.zeros(FEATURES))
    newest = max((push[4] for push in acknowledged), default=0)
    again = sum(push[4] < newest for push in gone - lost)
    return Counts(len(acknowledged), len(lost), reported, again, doubled, redone), sums


def _is(push: Push, machine: int, life: int) -> bool:
    """Whether a push is of a machine's part, in a life of the run's own process."""
    return machine_of(push[1]) == machine and push[4] == life


def _check_sums(layout: Layout, found: Mapping[str, Any], sums: Mapping[tuple[int, int], Any]) -> None:
    """Compares each number of each shard with the sum of what it should hold. Raises Violated."""
    column = {"sums.weight": np.tile(np.arange(FEATURES, dtype=np.float32), (ROWS, 1))}
    column["sums.bias"] = np.zeros(ROWS, np.float32)  # counts examples, as the first feature does
    for one in layout.shared_ranges:
        slots, own = layout.machines[one.machine], slice(one.machine_start, one.machine_stop)
        size = layout.machine_size(one.machine)
        values, columns = (np.empty(size, np.float32) for _ in range(2))
        gather(slots, found, out=values)
        gather(slots, column, out=columns)
        expected = -sums[one.machine, one.shard][columns[own].astype(int)]
        wrong = values[own] != expected
        if wrong.any():
            count = -values[own][columns[own] == 0] + expected[columns[own] == 0]
            raise Violated(
                f"{int(wrong.sum())} of {wrong.size} numbers of shard {one.shard} and machine {one.machine} "
                f"are not the sum of what it holds; in examples, too many: {count.tolist()}"
            )


def check_bits(folder: Path, calm: Path, spec: Spec) -> None:
    """Compares the result of a run with that of one without faults. Raises Violated."""
    if (folder / spec.result).read_bytes() != (calm / spec.result).read_bytes():
        raise Violated(f"the {spec.result} of the run are not those of a run without faults, {calm}")
