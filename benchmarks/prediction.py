"""Predicted against measured steps: plans of five networks on one and two parts, here and over links.

    python -m benchmarks.prediction [--rounds N] [--json FILE] [--rows NAME[,NAME]] [--interpolated] [--here]

The machine is calibrated in the same run, from nothing: the links once, and the kernels of each plan in every
round (with `--interpolated` those of the network whole and in equal pieces instead), just before the plan is
played by a session over processes: of this machine, and (unless `--here`) in network namespaces that links of
100 Mbit/s, 1 and 10 Gbit/s join; these need root. A step is what it takes where nobody disturbs it, a low
quantile of many, as it is in a calibration. Errors are those of a round; what counts is their median.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from rich.progress import Progress

from benchmarks._cases import Case, cases
from benchmarks._harness import Row, options, print_table, report
from benchmarks._machine import describe
from benchmarks._namespaces import why_not
from benchmarks._networks import SEED, data
from benchmarks._places import HERE, PLACES, Opened, Place
from benchmarks._rounds import Rounds
from partita.engine import SGD, Session
from partita.engine.profile import Calibration, calibrate
from partita.engine.profile.kernel_benchmark import QUANTILE
from partita.engine.profile.store import Store
from partita.partitioner import Cluster, Costs, Plan
from partita.partitioner.predict.simulate import simulate

WARM_UP: Final = 3
LEAST_STEPS: Final = 8
MOST_STEPS: Final = 400
STEPS_S: Final = 2.0
"""For how long a plan is played in a round."""
RATE: Final = 1e-6
"""Learning rate of SGD: the networks need not learn."""
MEDIAN: Final = 0.10
WORST: Final = 0.20
RANK: Final = 0.95


@dataclass(frozen=True)
class Outcome:
    """The figures of a case.

    Args:
        case: the plan.
        rounds: predicted and measured seconds of a step, in turn.
        calibrated: whether every kernel was measured.
    """

    case: Case
    rounds: tuple[tuple[float, float], ...]
    calibrated: bool

    @property
    def predicted_s(self) -> float:
        """Median of the predicted seconds."""
        return statistics.median(predicted for predicted, _ in self.rounds)

    @property
    def measured_s(self) -> float:
        """Median of the measured seconds."""
        return statistics.median(measured for _, measured in self.rounds)

    @property
    def error(self) -> float:
        """Relative to what was measured in the same round; the median."""
        return statistics.median(predicted / measured for predicted, measured in self.rounds) - 1.0


def main() -> None:
    """Calibrates, predicts, plays and compares."""
    interpolated, here = _flag("--interpolated"), _flag("--here")
    asked = options(__doc__ or "", rounds=3, rows=tuple({case.network.__name__: case for case in cases()}))
    print(describe(), flush=True)
    outcomes = []
    with tempfile.TemporaryDirectory() as folder, Progress(transient=True) as bar:
        trial = Trial(Path(folder), bar, asked.rounds, exactly=not interpolated)
        places = _places(here=here)
        played = [case for case in cases() if case.place in places and case.network.__name__ in asked.rows]
        asked.rounds.expect(len(played))
        for place in places:
            chosen = [case for case in played if case.place is place]
            with place.opened() as opened:
                outcomes += [trial.outcome(case, opened) for case in chosen]
    lines = [
        (
            outcome.case.name,
            f"{1e3 * outcome.predicted_s:.3f}",
            f"{1e3 * outcome.measured_s:.3f}",
            f"{outcome.error:+.1%}",
            "" if outcome.calibrated else "uncalibrated",
        )
        for outcome in outcomes
    ]
    print_table("a step in ms", ("plan", "predicted", "measured", "error", ""), lines)
    report("prediction (figures are 1 - error, and the correlation)", _rows(outcomes), file=asked.json)


def _flag(name: str) -> bool:
    """Removes an option from the command line, and returns whether it was there."""
    found = name in sys.argv
    sys.argv = [argument for argument in sys.argv if argument != name]
    return found


def _places(*, here: bool) -> list[Place]:
    """Places to play plans in."""
    reason = None if here else why_not()
    if reason is not None:
        print(f"no links: {reason}", file=sys.stderr)
    return [HERE] if here or reason is not None else [HERE, *PLACES]


@dataclass
class Trial:
    """Predicts and plays, in turn: what a machine does at its best changes from one minute to the next.

    Args:
        folder: for what is measured of the machine.
        bar: shows what is going on.
        rounds: of every plan.
        exactly: whether the kernels of each plan are measured, not only some like them.
    """

    folder: Path
    bar: Progress
    rounds: Rounds
    exactly: bool

    def __post_init__(self) -> None:
        self._task = self.bar.add_task("")
        self._stores = (Store(self.folder / f"{n}.json") for n in itertools.count())
        self._links = calibrate(store=next(self._stores), progress=self._progress).record

    def outcome(self, case: Case, place: Opened) -> Outcome:
        """Predicts and measures a case."""
        plan = case.plan(place.cluster(self._calibrated(case), case.machines))
        rounds, calibrated = [], True
        with place.session(plan, SEED, SGD(RATE)) as session:
            session.step(data(plan.graph, plan.batch))
            for n in self.rounds:
                self._progress(case.name, n, self.rounds.most)
                costed = case.plan(place.cluster(self._calibrated(case), case.machines))
                rounds.append((_predicted(costed), _measured(session)))
                calibrated &= costed.costs.calibrated
        return Outcome(case, tuple(rounds), calibrated)

    def _calibrated(self, case: Case) -> Calibration:
        """The links as they were measured once, and kernels as they are now."""
        store = next(self._stores)
        with store.locked():
            store.write(self._links)
        return calibrate(
            None if self.exactly else case.network(),
            batch=case.batch,
            plans=[case.plan(Cluster.local(case.machines))] if self.exactly else [],
            store=store,
            progress=self._progress,
        )

    def _progress(self, what: str, done: int, total: int) -> None:
        self.bar.update(self._task, description=what, completed=done, total=total)


def _measured(session: Session) -> float:
    """Measured seconds of a step in one round."""
    steps: list[float] = []
    for _ in range(WARM_UP):
        session.step(None)
    until = time.perf_counter() + STEPS_S
    while len(steps) < LEAST_STEPS or (len(steps) < MOST_STEPS and time.perf_counter() < until):
        steps.append(session.step(None).step_s)
    return float(np.quantile(steps, QUANTILE))


def _predicted(plan: Plan) -> float:
    """Predicted seconds of a step of a session, to whose parts a batch was brought before."""
    costs = Costs(plan.graph, plan.cluster, batch=plan.batch, precision=plan.precision, feeds=False)
    return simulate(plan.programs, costs, plan.sizes).step_s


def _rows(outcomes: list[Outcome]) -> list[Row]:
    errors = np.abs([outcome.error for outcome in outcomes])
    worst = max(outcomes, key=lambda outcome: abs(outcome.error))
    figures: Mapping[str, tuple[float, float, str]] = {
        "1 - median error": (1 - float(np.median(errors)), 1 - MEDIAN, f"{len(outcomes)} plans"),
        "1 - largest error": (1 - float(errors.max()), 1 - WORST, worst.case.name),
        "rank correlation": (spearman(outcomes), RANK, "Spearman's, of predicted and measured steps"),
    }
    return [Row(name, ratio, least, ratio, ratio, note) for name, (ratio, least, note) in figures.items()]


def spearman(outcomes: list[Outcome]) -> float:
    """The correlation of ranks; times hardly ever tie."""
    ranks = [
        np.argsort(np.argsort(seconds))
        for seconds in zip(*((outcome.predicted_s, outcome.measured_s) for outcome in outcomes), strict=True)
    ]
    return float(np.corrcoef(*ranks)[0, 1]) if len(outcomes) > 1 else 1.0


if __name__ == "__main__":
    main()
