"""Predicted against measured steps: plans of five networks on one and two parts, on hosts of this machine.

    python -m benchmarks.prediction [--rounds N] [--json FILE] [--rows NAME[,NAME]] [--interpolated]

The machine is calibrated in the same run, from nothing: every network whole and in equal pieces, and (unless
`--interpolated`) the kernels of each plan. Then every plan is played by a session over processes. A step is
what it takes where nobody disturbs it, a low quantile of many, as it is in a calibration.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from rich.progress import Progress

from benchmarks._harness import Row, options, print_table, report
from benchmarks._machine import describe
from benchmarks._networks import SEED, data, first, perceptron, speech
from partita.engine import SGD, Session
from partita.engine.profile.calibration import Calibration, calibrate
from partita.engine.profile.rehearsal import QUANTILE
from partita.engine.profile.store import Store
from partita.layers import (
    Conv2D,
    Dense,
    L2Pool2D,
    LocalContrastNormalisation2D,
    LocallyConnected2D,
    MaxPool2D,
    Network,
    OneAgainstAll,
    SoftmaxCrossEntropy,
)
from partita.partitioner import Cluster, Pieces, Plan, Whole, partition
from partita.partitioner.cost import Costs
from partita.partitioner.cuts import Cuts
from partita.partitioner.simulate import play

WARM_UP: Final = 3
LEAST_STEPS: Final = 8
MOST_STEPS: Final = 400
STEPS_S: Final = 2.0
"""For how long a plan is played in a round."""
RATE: Final = 1e-6
"""Of SGD: the networks need not learn."""
MEDIAN: Final = 0.10
WORST: Final = 0.20
RANK: Final = 0.95


def stages() -> Network:
    """The three stages of the image network, small: 36 x 36 pictures, patches of 5 x 5."""
    net = Network("stages")
    states = net.input("picture", shape=(36, 36, 3))
    for pool_size, stride in ((3, 1), (3, 1), (4, 4)):
        states = LocallyConnected2D(8, kernel_size=5)(states)
        states = LocalContrastNormalisation2D(5)(L2Pool2D(pool_size, stride=stride)(states))
    net.loss = OneAgainstAll()(Dense(2000, name="scores")(states), net.target("label"))
    return net


def pictures() -> Network:
    """A small convolutional network."""
    net = Network("pictures")
    states = net.input("picture", shape=(32, 32, 3))
    for number, filters in enumerate((32, 64)):
        states = Conv2D(filters, 5, padding="same", activation="relu", name=f"conv{number}")(states)
        states = MaxPool2D(2, stride=2, name=f"pool{number}")(states)
    states = Dense(1024, activation="relu", name="wide")(states)
    net.loss = SoftmaxCrossEntropy()(Dense(100, name="scores")(states), net.target("label"))
    return net


@dataclass(frozen=True)
class Place:
    """Where plans are played.

    Args:
        name: of it.
        cluster: describes so many machines there.
        session: opens a session of a plan there, that trains.
    """

    name: str
    cluster: Callable[[Calibration, int], Cluster]
    session: Callable[[Plan], Session]


HERE: Final = Place(
    "here",
    lambda calibration, machines: calibration.cluster(machines),
    lambda plan: Session(plan, SEED, train=True, rule=SGD(RATE), hosts="processes"),
)


@dataclass(frozen=True)
class Case:
    """A plan that is predicted and played.

    Args:
        network: declares what is cut.
        batch: examples in a minibatch.
        machines: over how many.
        cut: what it is called.
        cuts: of the layers that are named.
        place: where.
    """

    network: Callable[[], Network]
    batch: int
    machines: int
    cut: str
    cuts: Cuts
    place: Place = HERE

    @property
    def name(self) -> str:
        """`speech 128, 2 parts, uneven`."""
        where = "" if self.place is HERE else f", {self.place.name}"
        parts = f"{self.machines} part{'s' * (self.machines > 1)}"
        return f"{self.network.__name__} {self.batch}, {parts}, {self.cut}{where}"

    def plan(self, cluster: Cluster) -> Plan:
        """The plan over a cluster."""
        return partition(self.network(), cluster, batch=self.batch, cuts=self.cuts, strategy="balanced")


def uneven(network: Callable[[], Network], share: float) -> Cuts:
    """Every layer that can be cut, with so much of its rows on machine 0."""
    graph = network().graph()
    cuts = {}
    for grid in graph.computed:
        if grid.layer.cuttable:
            rows = min(max(round(share * grid.n_rows), 1), grid.n_rows - 1)
            cuts[grid.name] = Pieces(2, (rows, grid.n_rows - rows))
    return cuts


def horizontal(network: Callable[[], Network], below: int) -> Cuts:
    """The first layers on machine 0, the others on machine 1."""
    layers = network().graph().computed
    return {grid.name: Whole(0 if n < below else 1) for n, grid in enumerate(layers)}


def cases() -> list[Case]:
    """The plans."""
    found = []
    for network, batch in ((speech, 128), (first, 32), (stages, 16), (pictures, 16), (perceptron, 32)):
        found += [Case(network, batch, 1, "whole", {}), Case(network, batch, 2, "equal", {})]
        found.append(Case(network, batch, 2, "uneven", uneven(network, 0.7)))
    found += [
        Case(speech, 32, 2, "equal", {}),
        Case(speech, 128, 2, "horizontal", horizontal(speech, 4)),
        Case(speech, 128, 2, "mixed", {"hidden1": Whole(0), "hidden2": Whole(1)}),
        Case(first, 32, 2, "mixed", {"scores": Whole(1), "softmax_cross_entropy": Whole(1)}),
        Case(stages, 16, 2, "horizontal", horizontal(stages, 4)),
        Case(pictures, 16, 2, "horizontal", horizontal(pictures, 2)),
        Case(pictures, 64, 2, "mixed", {"wide": Whole(0), "scores": Whole(1)}),
        Case(perceptron, 32, 2, "horizontal", horizontal(perceptron, 1)),
    ]
    return found


@dataclass(frozen=True)
class Outcome:
    """What became of a case, in seconds."""

    case: Case
    predicted_s: float
    measured_s: float
    calibrated: bool

    @property
    def error(self) -> float:
        """Relative to what was measured."""
        return self.predicted_s / self.measured_s - 1.0


def main() -> None:
    """Calibrates, predicts, plays and compares."""
    interpolated = "--interpolated" in sys.argv
    sys.argv = [argument for argument in sys.argv if argument != "--interpolated"]
    known = {case.network.__name__: case for case in cases()}
    asked = options(__doc__ or "", rounds=3, rows=tuple(known))
    chosen = [case for case in cases() if case.network.__name__ in asked.rows]
    print(describe(), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder) / "machine.json")
        outcomes = list(_outcomes(chosen, store, rounds=asked.rounds, interpolated=interpolated))
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


def _outcomes(chosen: list[Case], store: Store, *, rounds: int, interpolated: bool) -> Iterator[Outcome]:
    with Progress(transient=True) as bar:
        task = bar.add_task("")
        for case in chosen:
            bar.update(task, description=case.name)
            plain = [] if interpolated else [case.plan(Cluster.local(case.machines))]
            calibration = calibrate(
                case.network(),
                batch=case.batch,
                plans=plain,
                store=store,
                progress=lambda told, done, total: bar.update(
                    task, description=told, completed=done, total=total
                ),
            )
            plan = case.plan(case.place.cluster(calibration, case.machines))
            yield Outcome(case, _predicted(plan), _measured(case, plan, rounds), plan.costs.calibrated)


def _predicted(plan: Plan) -> float:
    """Of a step of a session, to whose parts a batch was brought before."""
    costs = Costs(plan.graph, plan.cluster, batch=plan.batch, precision=plan.precision, feeds=False)
    return play(plan.programs, costs, plan.sizes).step_s


def _measured(case: Case, plan: Plan, rounds: int) -> float:
    with case.place.session(plan) as session:
        session.step(data(plan.graph, plan.batch))
        steps: list[float] = []
        for _ in range(rounds):
            for _ in range(WARM_UP):
                session.step(None)
            until, done = time.perf_counter() + STEPS_S, 0
            while done < LEAST_STEPS or (done < MOST_STEPS and time.perf_counter() < until):
                steps.append(session.step(None).step_s)
                done += 1
    return float(np.quantile(steps, QUANTILE))


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
