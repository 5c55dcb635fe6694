"""`python -m tests.storm`: kills and freezes everything in turn, and prints what that cost.

Ends with an error at the first violation, which names the seed, the faults and the folder of the run.
"""

from __future__ import annotations

import shutil
import signal
import tempfile
import time
from itertools import chain, count
from pathlib import Path
from random import Random
from typing import Annotated, Final

from typer import Option, Typer

from tests.storm.cells import CELLS, LENGTHS, Spec
from tests.storm.census import left_behind, segments
from tests.storm.checks import Violated
from tests.storm.pool import StormPool
from tests.storm.storm import Outcome, Setting, StormyRun
from tests.storm.table import line, table

app: Final = Typer(add_completion=False, pretty_exceptions_enable=False)


def specs(random: Random, only: str, places: list[str], scale: float) -> list[Spec]:
    """Returns one run of each cell, in an order that is drawn."""
    found = [
        Spec(
            driver,
            durability,
            place,
            *random.choice([(1, 2), (2, 2), (2, 3)]),
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
        self.outcomes: list[Outcome] = []

    def play(self, spec: Spec) -> Outcome:
        """Plays one run. Raises Violated."""
        setting = self._setting
        pool = setting.pool
        if spec.place == "pool" and pool is not None:
            spec = _at(spec, pool)
        calm = None if spec.counts else self._calm_of(spec)
        number = len(self.outcomes)
        run = StormyRun(setting, spec, setting.folder / f"{number}-{'-'.join(spec.cell)}")
        outcome = run.play(calm)
        self.outcomes.append(outcome)
        late = [str(one) for one in outcome.recoveries if one.is_late]
        if late and self._keep:
            print("\n".join([*late, f"kept: {run.folder}"]))
        else:
            shutil.rmtree(run.folder)
        return outcome

    def _calm_of(self, spec: Spec) -> Path:
        """The folder of the same run here, without faults."""
        here = _at(spec, None)
        if here not in self._calm:
            folder = self._setting.folder / f"calm-{len(self._calm)}"
            StormyRun(self._setting, here, folder).play()
            self._calm[here] = folder
        return self._calm[here]


@app.command()
def main(
    seconds: Annotated[float, Option(help="How long, about.")] = 600.0,
    seed: Annotated[int | None, Option(help="Of what is drawn.")] = None,
    every: Annotated[float, Option(help="Seconds from one fault to the next.")] = 2.0,
    only: Annotated[str, Option(help="Cells whose name has this text: 'downpour', 'log pool'.")] = "",
    place: Annotated[str, Option(help="'here', 'pool', or both.")] = "here,pool",
    keep: Annotated[bool, Option(help="Keep the folders of runs with late recoveries.")] = False,
    scale: Annotated[float, Option(help="Length of each run, as a multiple.")] = 1.0,
) -> None:
    """Storms."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was started is ended
    seed = Random().randrange(10**6) if seed is None else seed
    random, places = Random(seed), place.split(",")
    print(f"storm of {seconds:g} s, a fault every {every:g} s, seed {seed}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="partita-storm-"))
    setting = Setting(folder, f"storm-{folder.name}", every, random)
    before, began = segments(), time.monotonic()
    storm = Storm(setting, keep=keep)
    try:
        if "pool" in places:
            setting.pool = StormPool(folder / "pool", setting.env(folder / "tmp"))
        drawn = chain.from_iterable(specs(random, only, places, scale) for _ in count())
        while time.monotonic() - began < seconds:
            print(line(storm.play(next(drawn))), flush=True)
        if setting.pool is not None:
            setting.pool.close()
            left = left_behind(setting.mark, (), folder / "tmp", before, within_s=10.0)
            if left:
                raise Violated(f"the pool has left behind: {', '.join(left)}")
    except BaseException as error:
        error.add_note(f"seed {seed}; all files are kept in {folder}")
        raise
    finally:
        if setting.pool is not None:
            for process in setting.pool.all.values():
                process.kill()
    print(table(storm.outcomes, setting.census))
    if not keep:
        shutil.rmtree(folder)


def _at(spec: Spec, pool: StormPool | None) -> Spec:
    values = {field: getattr(spec, field) for field in spec.__struct_fields__}
    if pool is None:
        return Spec(**{**values, "place": "here", "pool": "", "keys": ""})
    return Spec(**{**values, "place": "pool", "pool": pool.address, "keys": str(pool.keys)})


if __name__ == "__main__":
    app()
