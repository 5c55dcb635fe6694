"""`python -m tests.storm`: kills and freezes everything in turn, and prints what that cost.

Its exit code is 0 if nothing was lost that was not reported, doubled or left behind, memory was flat, and
every run ended. Times that miss an aim are printed, and do not change it. What did not hold is printed with
the seed, the faults and the folder of the run; the storm goes on.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import tempfile
import time
from itertools import chain, count
from pathlib import Path
from random import Random
from typing import Annotated, Final

import psutil
from msgspec.structs import replace
from typer import Option, Typer

from tests.storm.cells import CELLS, LENGTHS, Spec
from tests.storm.census import left_behind, segments
from tests.storm.pool import StormPool
from tests.storm.processes import is_below, is_host, marked, name_of
from tests.storm.storm import Outcome, Setting, StormyRun
from tests.storm.table import line, table

_SIZES: Final = ((1, 2), (2, 2), (2, 3))
"""Machines and shards."""

_LEAST_STRUCK_S: Final = 12.0
_MOST_STRUCK_S: Final = 60.0
_UNSTRUCK_S: Final = 12.0  # that a run takes besides, to its end and for the checks

app: Final = Typer(add_completion=False, pretty_exceptions_enable=False)


def specs(random: Random, only: str, places: list[str], scale: float) -> list[Spec]:
    """Returns one run of each cell, in an order that is drawn. Those that are compared with a run without
    faults have the same numbers of machines and shards, so that one such run is enough for a driver.
    """
    sizes = {driver: random.choice(_SIZES) for driver in LENGTHS}
    found = [
        Spec(
            driver,
            durability,
            place,
            *(random.choice(_SIZES) if driver == "downpour" else sizes[driver]),
            int(LENGTHS[driver] * scale),
            0,
        )
        for driver, durability in CELLS
        for place in places
        if only in f"{driver} {durability} {place}"
    ]
    random.shuffle(found)
    return found


class Storm:
    """A storm: its setting, the calm runs to compare with, and the outcomes."""

    def __init__(self, setting: Setting, *, keep: bool) -> None:
        self._setting, self._keep = setting, keep
        self._calm: dict[Spec, Path] = {}
        self.played: set[tuple[str, str, str]] = set()
        self.outcomes: list[Outcome] = []

    def play(self, spec: Spec) -> Outcome:
        """Plays one run."""
        setting = self._setting
        pool = setting.pool
        if spec.place == "pool" and pool is not None:
            spec = _at(spec, pool)
        calm = None if spec.counts else self._calm_of(spec)
        self.played.add(spec.cell)
        number = len(self.outcomes)
        run = StormyRun(setting, spec, setting.folder / f"{number}-{'-'.join(spec.cell)}")
        outcome = run.play(calm)
        self.outcomes.append(outcome)
        late = [str(one) for one in outcome.recoveries if one.is_late]
        if outcome.violated:
            print("\n".join([f"{spec}", *map(str, outcome.faults), f"kept: {run.folder}"]))
            self._clean()
        elif late and self._keep:
            print("\n".join([*late, f"kept: {run.folder}"]))
        else:
            shutil.rmtree(run.folder)
        return outcome

    def _clean(self) -> None:
        """Ends what a run has left behind, so that the next one is not blamed for it."""
        pool = self._setting.pool
        own = () if pool is None else tuple(one.pid for one in pool.all.values())
        for process in marked(self._setting.mark):
            if process.pid not in own and (is_host(name_of(process)) or not is_below(process, own)):
                with contextlib.suppress(psutil.Error):
                    process.kill()

    def _calm_of(self, spec: Spec) -> Path:
        """The folder of the same run here, without faults."""
        here = _at(spec, None, durability=next(way for name, way in CELLS if name == spec.driver))
        if here not in self._calm:
            folder = self._setting.folder / f"calm-{len(self._calm)}"
            violated = StormyRun(self._setting, here, folder).play().violated
            assert not violated, f"a run without faults: {violated}"
            self._calm[here] = folder
        return self._calm[here]


@app.command()
def main(
    seconds: Annotated[float, Option(help="How long, about.")] = 600.0,
    seed: Annotated[int | None, Option(help="Of what is drawn.")] = None,
    every: Annotated[float, Option(help="Seconds from one fault to the next.")] = 2.0,
    only: Annotated[str, Option(help="Cells whose name has this text: 'downpour', 'log pool'.")] = "",
    place: Annotated[str, Option(help="'here', 'pool', or both.")] = "here,pool",
    role: Annotated[str, Option(help="Only these are struck: 'coordinator,part'.")] = "",
    keep: Annotated[bool, Option(help="Keep the folders of runs with late recoveries.")] = False,
    scale: Annotated[float, Option(help="Length of each run, as a multiple.")] = 1.0,
) -> None:
    """Storms."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was started is ended
    seed = Random().randrange(10**6) if seed is None else seed
    random, places = Random(seed), place.split(",")
    print(f"storm of {seconds:g} s, a fault every {every:g} s, seed {seed}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="partita-storm-"))
    cells = {one.cell for one in specs(Random(seed), only, places, scale)}
    struck_s = min(_MOST_STRUCK_S, max(_LEAST_STRUCK_S, seconds / max(len(cells), 1) - _UNSTRUCK_S))
    setting = Setting(
        folder, f"storm-{folder.name}", every, random, struck_s, frozenset(filter(None, role.split(",")))
    )
    before, began = segments(), time.monotonic()
    storm, left = Storm(setting, keep=keep), list[str]()
    try:
        if "pool" in places:
            setting.pool = StormPool(folder / "pool", setting.env(folder / "tmp"))
        drawn = chain.from_iterable(specs(random, only, places, scale) for _ in count())
        while (now := time.monotonic() - began) < seconds or (now < 2 * seconds and cells - storm.played):
            print(line(storm.play(next(drawn))), flush=True)
        if setting.pool is not None:
            setting.pool.close()
            left = left_behind(setting.mark, (), folder / "tmp", before, within_s=10.0)
    except BaseException as error:
        error.add_note(f"seed {seed}; all files are kept in {folder}")
        raise
    finally:
        if setting.pool is not None:
            for process in setting.pool.all.values():
                process.kill()
    print(table(storm.outcomes, setting.census))
    failed = [f"the pool has left behind: {', '.join(left)}"] if left else []
    failed += [f"not played: {' '.join(cell)}" for cell in sorted(cells - storm.played)]
    failed += [f"{n} runs violated a promise" for n in [sum(bool(o.violated) for o in storm.outcomes)] if n]
    print("\n".join(failed or ["everything holds"]), flush=True)
    if failed:
        print(f"seed {seed}; files are kept in {folder}")
        raise SystemExit(1)
    if not keep:
        shutil.rmtree(folder)


def _at(spec: Spec, pool: StormPool | None, **changes: str) -> Spec:
    if pool is None:
        return replace(spec, place="here", pool="", keys="", **changes)
    return replace(spec, place="pool", pool=pool.address, keys=str(pool.keys), **changes)


if __name__ == "__main__":
    app()
