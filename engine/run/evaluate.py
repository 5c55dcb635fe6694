"""`evaluate` and `predict`: a partitioned network on data, batch by batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from partita.engine.launch.on import On
from partita.engine.run.arrays import Array
from partita.engine.run.data import Data, check_data
from partita.engine.run.minibatches import Minibatches, SharedSession
from partita.engine.run.phases import Phases, Show
from partita.engine.run.run import Run
from partita.engine.run.session import Hosts
from partita.engine.run.step import Step
from partita.engine.runtime.metric import Metric, check_metrics
from partita.engine.runtime.reported_sums import ReportedSums
from partita.layers.checks import check_whole
from partita.layers.difference_losses import HalfSquaredError
from partita.layers.graph import Graph
from partita.layers.text import counted


@dataclass(frozen=True)
class Evaluation:
    """Loss and accuracy of a network on data.

    Args:
        loss: mean over the examples.
        accuracy: fraction of the labels that are right, of all losses with labels; NaN without any.
        examples: number of examples.
        rms_error: root mean square of scores less targets, where the one loss is `HalfSquaredError`; else
            NaN.
        metrics: the mean of each loss, without its weight, where there are several; and `metrics`.
    """

    loss: float
    accuracy: float
    examples: int
    rms_error: float = math.nan
    metrics: Mapping[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        """The figures that the network's losses have, in a line."""
        figures = [f"loss {self.loss:.4f}"]
        if not math.isnan(self.accuracy):
            figures.append(f"accuracy {self.accuracy:.3f}")
        if not math.isnan(self.rms_error):
            figures.append(f"root mean square error {self.rms_error:.4g}")
        figures += [f"{name} {figure:.4g}" for name, figure in self.metrics.items()]
        return f"{', '.join(figures)} on {counted(self.examples, 'example')}"


def evaluate(
    run: Run,
    data: Data,
    *,
    replicas: int = 1,
    hosts: Hosts | On | str = "threads",
    timeout_s: float = 300.0,
    show: Show = "auto",
    metrics: Sequence[Metric] = (),
) -> Evaluation:
    """Computes the mean loss and accuracy of a network, and further metrics.

    Args:
        run: a trained (or loaded) network and its plan.
        data: an array for each input and target, `[example, *shape]`.
        replicas: copies of the network that share the batches; the result has the same bits with any number.
            With several, a host that dies is started again, and its batches are done by another replica.
        hosts: "threads" of this process, "processes" that talk over ZeroMQ, or a
            value of `on` of `train`, such as `Pool(...)`.
        timeout_s: seconds that hosts may take to start, and for any batch.
        show: how progress is shown, as in `train`, if it lasts.
        metrics: figures such as `[TopK(5)]`. The scores that they need come to this process, so that they may
            be cut in any way.

    Raises:
        ValueError: `run` is no run, the network has no loss, or the data or a metric does not fit it.
        HostError: a host failed, or took too long; with several replicas, several times.
    """
    _check_run(run, "evaluate")
    if not run.plan.graph.losses:
        raise ValueError(f"network '{run.plan.graph.name}' has no loss to evaluate; use predict")
    arrays = check_data(run.plan.graph, data, targets=True, precision=run.plan.precision)
    graph, batch, asked = run.plan.graph, run.plan.batch, check_metrics(metrics)
    reported = ReportedSums.of(graph, asked)
    scores = tuple(dict.fromkeys(graph[one.loss].sources[0] for one in reported.metrics))
    loss, correct, labels, seen, parts = 0.0, 0, 0, 0, dict.fromkeys(reported.losses, 0.0)
    sums = np.zeros(len(reported))
    session = partial(SharedSession, run.plan, run.parameters, hosts=hosts, timeout_s=timeout_s)
    given = Minibatches(arrays, batch, scores)
    for step, real in _steps(session, given, "evaluating", show, replicas=replicas):
        loss += step.loss * real
        correct += step.correct
        labels += step.labels
        parts = {name: part + step.losses[name] * real for name, part in parts.items()}
        collected = {name: np.moveaxis(step.collected[name], -1, 0)[:real] for name in scores}
        sums += reported.of_arrays(collected, {name: one[seen : seen + real] for name, one in arrays.items()})
        seen += real
    mean, accuracy = loss / seen, correct / labels if labels else math.nan
    figures = {name: part / seen for name, part in parts.items()} | reported.metric_figures(sums.tolist())
    return Evaluation(mean, accuracy, seen, _rms_error(graph, mean), figures)


def _rms_error(graph: Graph, mean_loss: float) -> float:
    """Root mean square of all differences, where the mean loss consists of them."""
    losses = [graph[name] for name in graph.losses]
    if len(losses) > 1 or not isinstance(losses[0].layer, HalfSquaredError):
        return math.nan
    return math.sqrt(losses[0].layer.mean_square(mean_loss, graph[losses[0].sources[0]].shape))


def _check_run(value: object, function: str) -> None:
    """Refuses what is no run. Raises ValueError."""
    if not isinstance(value, Run):
        raise ValueError(
            f"{function} takes a run, and was given a {type(value).__name__}; give what train returns, or "
            "Run.load(PATH, plan), or Run(plan, parameters)"
        )


def predict(
    run: Run,
    inputs: Data,
    *,
    replicas: int = 1,
    hosts: Hosts | On | str = "threads",
    timeout_s: float = 300.0,
    show: Show = "auto",
) -> Array | dict[str, Array]:
    """Computes the scores of a network: the activations of the layers that its losses compare with targets.

    Args:
        run: a trained (or loaded) network and its plan.
        inputs: an array for each input, `[example, *shape]`; targets are ignored.
        replicas: see `evaluate`.
        hosts: see `evaluate`.
        timeout_s: see `evaluate`.
        show: see `evaluate`.

    Returns:
        `[example, *shape]` of the scores; a dictionary by layer where there are several.

    Raises:
        ValueError: `run` is no run, or the inputs do not fit the network.
        HostError: a host failed, or took too long.
    """
    _check_run(run, "predict")
    plan, given = run.plan.for_prediction(), (*run.plan.graph.inputs, *run.plan.graph.targets)
    ignored = [grid.name for grid in given]  # also those that only the losses of the whole network need
    arrays = check_data(plan.graph, inputs, targets=False, precision=plan.precision, ignored=ignored)
    names = run.plan.graph.scores
    found: dict[str, list[Array]] = {name: [] for name in names}
    session = partial(SharedSession, plan, run.parameters, hosts=hosts, timeout_s=timeout_s)
    for step, real in _steps(
        session, Minibatches(arrays, plan.batch, names), "predicting", show, replicas=replicas
    ):
        for name in names:
            found[name].append(np.moveaxis(step.collected[name], -1, 0)[:real])
    joined = {name: np.concatenate(parts) for name, parts in found.items()}
    return joined[names[0]] if len(names) == 1 else joined


def _steps(
    session: Callable[..., SharedSession], given: Minibatches, doing: str, show: Show, *, replicas: int
) -> Iterator[tuple[Step, int]]:
    """Yields the results of each minibatch, in order, and the number of its examples that count.

    Args:
        session: makes the session, from settings that it lacks.
        given: the minibatches.
        doing: what is shown.
        show: see `evaluate`.
        replicas: copies of the plan.
    """
    with Phases.of(show) as on_phase:
        one = session(show=on_phase, given=given, replicas=check_whole(replicas, "replicas is"))
        with one:
            steps = one.steps()
            for n in range(len(given)):
                on_phase(f"{doing}: {n * given.size} of {given.examples} examples")
                yield next(steps)
