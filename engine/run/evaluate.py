"""`evaluate` and `predict`: a partitioned network on data, batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np

from partita.engine.data.weighing import ClassWeight, SampleWeight, weighing_of
from partita.engine.launch.on import On
from partita.engine.run.arrays import Array
from partita.engine.run.data import Data
from partita.engine.run.figures import Evaluation as Evaluation
from partita.engine.run.figures import Figures
from partita.engine.run.minibatches import Minibatches, SharedSession, minibatches_of
from partita.engine.run.phases import Phases, Show
from partita.engine.run.run import Run
from partita.engine.run.session import Hosts
from partita.engine.run.step import Step
from partita.engine.runtime.metric import Metric, check_metrics
from partita.layers.checks import check_whole


def evaluate(
    run: Run,
    data: Data,
    *,
    replicas: int = 1,
    hosts: Hosts | On | str = "threads",
    timeout_s: float = 300.0,
    show: Show = "auto",
    metrics: Sequence[Metric] = (),
    sample_weight: SampleWeight | None = None,
    class_weight: ClassWeight | None = None,
) -> Evaluation:
    """Computes the mean loss and accuracy of a network, and further metrics.

    Args:
        run: a trained (or loaded) network and its plan.
        data: an array for each input and target, `[example, *shape]`, or data of any kind that `train` takes.
        replicas: copies of the network that share the batches; the result has the same bits with any number.
            With several, a host that dies is started again, and its batches are done by another replica.
        hosts: "threads" of this process, "processes" that talk over ZeroMQ, or a
            value of `on` of `train`, such as `Pool(...)`.
        timeout_s: seconds that hosts may take to start, and for any batch.
        show: how progress is shown, as in `train`, if it lasts.
        metrics: figures such as `[TopK(5)]`. The scores that they need come to this process, so that they may
            be cut in any way.
        sample_weight: factors of the losses, see `train`. Accuracy and metrics count examples alike.
        class_weight: factors of the loss by label, see `train`.

    Raises:
        ValueError: `run` is no run, the network has no loss, or the data or a metric does not fit it.
        HostError: a host failed, or took too long; with several replicas, several times.
    """
    check_run(run, "evaluate")
    if not run.plan.graph.losses:
        raise ValueError(f"network '{run.plan.graph.name}' has no loss to evaluate; use predict")
    graph, weighing = weighing_of(run.plan.graph, sample_weight, class_weight)
    figures = Figures(graph, check_metrics(metrics))
    plan, reported = run.plan if weighing is None else run.plan.of_graph(graph), figures.reported
    scores = tuple(dict.fromkeys(graph[one.loss].sources[0] for one in reported.metrics))
    session = partial(SharedSession, plan, run.parameters, hosts=hosts, timeout_s=timeout_s)
    with minibatches_of(run.plan, data, scores, targets=True, weighing=weighing) as given:
        for number, (step, real) in enumerate(_steps(session, given, "evaluating", show, replicas=replicas)):
            if reported.metrics:
                collected = {name: np.moveaxis(step.collected[name], -1, 0)[:real] for name in scores}
                figures.add_sums(reported.of_arrays(collected, given.real_batch(number)))
            counts = {"correct": step.correct, "labels": step.labels, "examples": real}
            figures.add(loss=step.loss, losses=step.losses, **counts)
    return figures.evaluation()


def check_run(value: object, function: str) -> None:
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
        inputs: an array for each input, `[example, *shape]`, or data of any kind that `train` takes; targets
            are ignored.
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
    check_run(run, "predict")
    plan, given = run.plan.for_prediction(), (*run.plan.graph.inputs, *run.plan.graph.targets)
    ignored = [grid.name for grid in given]  # also those that only the losses of the whole network need
    names = run.plan.graph.scores
    found: dict[str, list[Array]] = {name: [] for name in names}
    session = partial(SharedSession, plan, run.parameters, hosts=hosts, timeout_s=timeout_s)
    with minibatches_of(plan, inputs, names, targets=False, ignored=ignored) as minibatches:
        for step, real in _steps(session, minibatches, "predicting", show, replicas=replicas):
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
