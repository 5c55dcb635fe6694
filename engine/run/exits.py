"""`predict_with_exits`: predictions that end where a network is certain enough, and send only then further.

Parts behind an exit receive the examples that go on and no others. If a machine is lost, its layers are
left out (see `partitioner.remainder`), and the prediction goes on with the rest, from the first batch that is
not done.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from partita.engine.kernels.kernel import Array
from partita.engine.launch.on import On
from partita.engine.protocol.failure import HostError
from partita.engine.protocol.names import machine_of
from partita.engine.run.data import Data
from partita.engine.run.evaluate import check_run
from partita.engine.run.exit_predictions import ExitPredictions
from partita.engine.run.exit_session import ExitSession, Scored
from partita.engine.run.minibatches import Minibatches, minibatches_of
from partita.engine.run.phases import OnPhase, Phases, Show
from partita.engine.run.run import Run
from partita.engine.run.session import Hosts
from partita.engine.run.step import Sent
from partita.layers.exits import check_threshold, exits_of, normalised_entropy
from partita.layers.graph import Graph
from partita.partitioner.plan import Plan
from partita.partitioner.remainder import remainder, restricted


def predict_with_exits(
    run: Run,
    inputs: Data,
    *,
    thresholds: Mapping[str, float] | None = None,
    without: Collection[str] = (),
    hosts: Hosts | On | str = "threads",
    timeout_s: float = 300.0,
    show: Show = "auto",
) -> ExitPredictions:
    """Predicts, and ends each example at the first exit that is certain enough of it.

    Args:
        run: a trained (or loaded) network with exits, see `Network.exit`, and its plan.
        inputs: as in `predict`.
        thresholds: by exit; of those that are left out, the network's own. The last exit needs none.
        without: names of machines that are lost from the start. A machine that is lost later is left out from
            then on, if the exits that are left allow that.
        hosts: see `evaluate`.
        timeout_s: see `evaluate`.
        show: see `evaluate`.

    Raises:
        ValueError: the network has no exits, a threshold is missing or out of range, the plan is cut into
            tiles, or the inputs do not fit the network.
        HostError: a host failed whose layers every exit needs, or took too long.
    """
    check_run(run, "predict_with_exits")
    graph, plan = run.plan.graph, run.plan
    below = thresholds_of(graph, {} if thresholds is None else thresholds)
    if plan.ownership.tiled:
        layers = ", ".join(sorted(plan.ownership.tiled))
        raise ValueError(f"exits need a plan without tiles, and {layers} are cut into tiles; cut their rows")
    ignored = [grid.name for grid in (*graph.inputs, *graph.targets)]
    plan = plan.for_prediction().with_micro_batches(1)
    with (
        Phases.of(show) as on_phase,
        minibatches_of(plan, inputs, targets=False, ignored=ignored) as given,
    ):
        work = _Work(run, plan, below, given, {"hosts": hosts, "timeout_s": timeout_s, "show": on_phase})
        for name in without:
            work.lose(name)
        work.finish(on_phase)
        return work.result()


def thresholds_of(graph: Graph, given: Mapping[str, float]) -> dict[str, float]:
    """Returns the threshold of each exit but the last, and 1 for that. Raises ValueError."""
    exits = exits_of(graph)
    if not exits:
        raise ValueError(
            f"network '{graph.name}' has no exits; declare them with net.exit(scores, threshold=...)"
        )
    unknown = [name for name in given if name not in exits]
    if unknown:
        known = ", ".join(exits)
        raise ValueError(f"there is no exit '{unknown[0]}' in network '{graph.name}'; it has {known}")
    *earlier, last = exits
    found = {name: given.get(name, exits[name].threshold) for name in earlier}
    for name, value in found.items():
        if value is None:
            raise ValueError(
                f"exit '{name}' has no threshold; give thresholds={{'{name}': 0.5}}, or let "
                "choose_thresholds find one"
            )
    return {n: check_threshold(v, f"the threshold of '{n}' is") for n, v in found.items()} | {last: 1.0}


def ends_at(entropy: Array, threshold: float) -> Array:
    """Returns whether examples end: their entropy is below the threshold, or the threshold is 1."""
    return (entropy < threshold) | (threshold >= 1)


class _Work:
    """The examples that have ended, and the plan of the machines that are left."""

    def __init__(
        self, run: Run, plan: Plan, below: Mapping[str, float], given: Minibatches, settings: dict[str, Any]
    ) -> None:
        self._run, self._given, self._settings, self._below = run, given, settings, below
        self._exits = tuple(below)
        scores = {name: run.plan.graph[name].sources[0] for name in below}
        self._ends = {scores[name]: name for name in below}  # of those that are left
        self._plan = restricted(plan, self._ends)
        self._machines = tuple(machine.name for machine in plan.cluster.machines)
        self._inputs = {grid.name for grid in plan.graph.inputs}
        self.lost: list[str] = []
        n, classes = given.examples, run.plan.graph[next(iter(self._ends))].n_nodes
        self._exit, self._entropy = np.full(n, -1, np.int64), np.zeros(n)
        self._scores: Array = np.zeros((n, classes))
        self._sent: dict[str, dict[str, list[Sent]]] = {name: {} for name in self._exits}

    def lose(self, name: str) -> None:
        """Goes on without a machine. Raises ValueError if there is none, or no exit is left."""
        names = [machine.name for machine in self._plan.cluster.machines]
        if name not in names:
            raise ValueError(f"there is no machine '{name}' to do without; there are {', '.join(names)}")
        self._plan, left = remainder(self._plan, names.index(name), tuple(self._ends))
        self._ends = {end: self._ends[end] for end in left}
        self.lost.append(name)

    def finish(self, on_phase: OnPhase) -> None:
        """Plays until every example has ended. Raises HostError."""
        while (self._exit < 0).any():
            try:
                self._play(on_phase)
            except HostError as error:
                self._go_on_after(error, on_phase)

    def _go_on_after(self, error: HostError, on_phase: OnPhase) -> None:
        """Leaves out the machine of a host that failed. Raises the error if that cannot be."""
        if not error.host or len(self._plan.cluster) == 1:
            raise error
        name = self._plan.cluster.machines[machine_of(error.host)].name
        try:
            self.lose(name)
        except ValueError as why:
            error.add_note(str(why))
            raise error from why
        on_phase(f"machine '{name}' is lost ({error}); going on without it")

    def _play(self, on_phase: OnPhase) -> None:
        given = self._given
        with ExitSession(
            self._plan, self._run.parameters, ends=tuple(self._ends), **self._settings
        ) as session:
            for number in range(len(given)):
                examples = range(number * given.size, number * given.size + given.real(number))
                if (self._exit[examples] >= 0).all():
                    continue  # before a machine was lost
                on_phase(f"predicting: {examples.start} of {given.examples} examples")
                self._decide(session, session.first(self._fed(number), examples))
                while (scored := session.later()) is not None:
                    self._decide(session, scored)
            while (scored := session.later(flush=True)) is not None:
                self._decide(session, scored)

    def _fed(self, number: int) -> dict[str, Array]:
        """A batch for the inputs that are left, with zeros for those that stand for lost layers."""
        batch, found = self._given.batch(number), {}
        for grid in self._plan.graph.inputs:
            zeros = np.zeros((self._given.size, *grid.shape))
            found[grid.name] = batch[grid.name] if grid.name in self._inputs else zeros
        return found

    def _decide(self, session: ExitSession, scored: Scored) -> None:
        """Ends the examples of which an exit is certain, and sends the others on."""
        name = list(self._ends.values())[scored.stage]
        examples, entropy = np.asarray(scored.examples), normalised_entropy(scored.scores)
        is_last = scored.stage == len(self._ends) - 1
        done = self._exit[examples] >= 0
        ends = ends_at(entropy, 1.0 if is_last else self._below[name]) & ~done
        session.go_on(scored, () if is_last else np.flatnonzero(~ends & ~done).tolist())
        now = examples[ends]
        self._exit[now] = self._exits.index(name)
        self._entropy[now], self._scores[now] = entropy[ends], scored.scores[ends]
        for machine, sent in zip(self._plan.cluster.machines, scored.sent, strict=True):
            self._sent[name].setdefault(machine.name, []).append(sent)

    def result(self) -> ExitPredictions:
        """Returns what was found."""
        sent = {
            name: {
                machine: Sent(sum(one.messages for one in some), sum(one.n_bytes for one in some))
                for machine, some in by_machine.items()
            }
            for name, by_machine in self._sent.items()
        }
        return ExitPredictions(
            self._exits,
            self._below,
            self._scores,
            self._exit,
            self._entropy,
            sent,
            self._machines,
            tuple(self.lost),
        )
