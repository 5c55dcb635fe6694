"""The reference: a driver's program, run by all replicas in one process, one action after another.

There are no messages and no failures. A sum is taken over the members in their order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from partita.engine.protocol import actions as a
from partita.engine.protocol.exchange import Broadcast
from partita.engine.protocol.program_effects import SharedSpan
from partita.engine.protocol.replica_messages import View
from partita.engine.protocol.views import JoinedBatches, Member
from partita.engine.testing.invariants import require
from partita.engine.testing.parts import combined, product
from partita.engine.testing.program.regression import Regression, Vector, scratch_of, state_of

State: TypeAlias = tuple[tuple[Vector, ...], ...]
"""The vectors of the state, of every machine."""

Vectors: TypeAlias = dict[str, list[float]]


_ALONE: Final = (a.Combine, a.Apply, a.Keep, a.Restore)
"""Actions that a replica does by itself, beside its computations."""


def share(batches: JoinedBatches, position: int, rank: int, replicas: int) -> tuple[int, int, int]:
    """The examples `[first, stop)` of a replica in a step, and the size of the joined batch."""
    joined = batches.after(position, replicas) - position
    first = position % batches.examples
    stop = first + joined
    return min(first + rank * batches.batch, stop), min(first + (rank + 1) * batches.batch, stop), joined


def portion(driver: Any, batches: JoinedBatches, of: a.Portion) -> tuple[int, int, int]:
    """The examples `[first, stop)` of a client's portion, and their number. Here they are not permuted."""
    sizes = driver.division.sizes(batches.examples, batches.seed)
    first = int(sizes[: of.client].sum()) + of.start
    n = of.stop - of.start
    require(0 <= of.start < of.stop <= sizes[of.client], "program", of, "is no portion of", sizes)
    return first, first + n, n


def step_of(
    driver: Any,
    function: Regression,
    batches: JoinedBatches,
    spans: Sequence[Sequence[SharedSpan]],
    view: View,
    state: State,
    *,
    without: int | None = None,
) -> State:
    """The state after one more step in a view of these members, from the state before it.

    `without` leaves out a part's gradient, by its rank among all parts of the view; the others are scaled up.
    """
    reference = _Step(driver, function, batches, spans, view, state)
    reference.without = without
    return reference.run()


class _Step:
    without: int | None = None

    def __init__(
        self,
        driver: Any,
        function: Regression,
        batches: JoinedBatches,
        spans: Sequence[Sequence[SharedSpan]],
        view: View,
        state: State,
    ) -> None:
        self._driver, self._names = driver, state_of(driver)
        self._function, self._batches, self._spans, self._view = function, batches, spans, view
        self._keys = [(rank, machine) for rank in range(len(view.members)) for machine in range(len(state))]
        self._vectors: dict[tuple[int, int], Vectors] = {
            (rank, machine): {name: list(one) for name, one in zip(self._names, state[machine], strict=True)}
            | {name: [0.0] * len(state[machine][0]) for name in scratch_of(driver)}
            | {"norms": [0.0] * function.norms(1)}
            for rank, machine in self._keys
        }
        self._normed = False

    def run(self) -> State:
        view = self._view
        programs = {
            (rank, machine): self._driver.replica(Member(view.members[rank], machine, view, self._batches))
            for rank, machine in self._keys
        }
        result: object = None
        while True:
            actions = [
                action for rank in range(len(view.members)) for action in self._go_on(rank, programs, result)
            ]
            require(len(set(map(type, actions))) == 1, "program", "replicas are not in step:", actions)
            if actions[0] is None or isinstance(actions[0], a.SafePoint):
                break
            result = self._act(actions)
        for program in programs.values():
            program.close()
        return tuple(
            tuple(tuple(self._vectors[0, machine][name]) for name in self._names)
            for machine in range(len(self._spans))
        )

    def _go_on(self, rank: int, programs: Mapping[tuple[int, int], Any], result: object) -> list[Any]:
        """Carries out what a replica does by itself. Returns its parts' next actions that others do, too."""
        machines = range(len(self._spans))
        while True:
            actions = [_after(programs[rank, machine], result) for machine in machines]
            require(len(set(map(type, actions))) == 1, "program", "parts are not in step:", actions)
            if isinstance(actions[0], a.Compute):
                self._compute(rank, actions[0])
            elif isinstance(actions[0], _ALONE):
                for machine, action in enumerate(actions):
                    self._act_alone(self._vectors[rank, machine], action, machine)
            else:
                return actions
            result = None

    def _act_alone(self, vectors: Vectors, action: Any, machine: int) -> None:
        """Carries out an action of one part on its own vectors."""
        n = len(vectors["parameters"])
        match action:
            case a.Combine(into=into, terms=terms):
                vectors[into] = combined([(vectors[name], factor) for name, factor in terms.items()], n)
            case a.Keep():
                vectors["start"] = list(vectors["parameters"])
            case a.Restore():
                vectors["parameters"] = list(vectors["start"])
            case a.Apply(to=to, gradient=by):
                normed = self._normed and to == "parameters"
                update, scale = self._function.update, self._view.scale
                update(vectors, 0, n, machine=machine, normed=normed, scale=scale, to=to, by=by)

    def _act(self, actions: Sequence[Any]) -> object:
        """Carries out an action that all replicas do together; returns its result."""
        action = actions[0]
        match action:
            case a.Dots(pairs=pairs):
                return self._products(pairs)
            case a.AllReduce(vector="norms"):
                pass  # each member has those of all machines here
            case a.AllReduce(vector=vector, mean=mean):
                if action.weight is not None:
                    for vectors, one in zip(self._vectors.values(), actions, strict=True):
                        vectors[vector] = [number * one.weight for number in vectors[vector]]
                self._sum(vector, mean=mean, among=action.among)
            case a.ReduceScatter(vector=vector, by=Broadcast(root=root), among=among):
                self._collect(vector, root, among)
            case a.ReduceScatter(vector=vector):
                self._sum(vector, mean=False)
            case a.ExchangeMessages(vector=vector, by=Broadcast(root=root)):
                self._copy(vector, root, None)
            case a.ExchangeMessages(compress=compress, turn=turn, vector=vector):
                if turn == len(compress.rounds) - 1:
                    self._sum(vector, mean=False)
            case a.Norms():
                self._measure()
            case a.AllGather(vector=vector, by=Broadcast(root=root), among=among):
                self._copy(vector, root, among)
            case a.AllGather():
                pass  # every member has all ranges here
        return None

    def _copy(self, vector: str, root: int, among: tuple[int, ...] | None) -> None:
        """Copies a vector of one replica to the others."""
        ranks = range(len(self._view.members)) if among is None else among
        for (rank, machine), vectors in self._vectors.items():
            if rank in ranks:
                vectors[vector] = list(self._vectors[ranks[root], machine][vector])

    def _collect(self, vector: str, root: int, among: tuple[int, ...] | None) -> None:
        """Sums a vector at one replica, in the order of the ranks; the others keep their own."""
        ranks = range(len(self._view.members)) if among is None else among
        for machine in range(len(self._spans)):
            held = [self._vectors[rank, machine][vector] for rank in ranks]
            self._vectors[ranks[root], machine][vector] = [sum(column) for column in zip(*held, strict=True)]

    def _measure(self) -> None:
        """Measures the parameters and the gradient that all members have, each number of a machine once."""
        found = [0.0] * self._function.norms(1)
        for machine, spans in enumerate(self._spans):
            vectors = self._vectors[0, machine]
            own = [(one.start, one.stop) for one in spans if one.machines[0] == machine]
            self._function.measure(vectors, own, replica=0, machine=machine)
            found = [one + other for one, other in zip(found, vectors["norms"], strict=True)]
        for vectors in self._vectors.values():
            vectors["norms"][:] = found
        self._normed = True

    def _compute(self, rank: int, action: a.Compute) -> None:
        self._normed = False
        machines, view = range(len(self._spans)), self._view
        parameters = [self._vectors[rank, machine]["parameters"] for machine in machines]
        examples = (
            portion(self._driver, self._batches, action.of)
            if isinstance(action.of, a.Portion)
            else share(self._batches, view.position, rank, len(view.members))
        )
        gradients = self._function.gradient(parameters, *examples)
        if (scale := action.loss_scale) != 1.0:
            is_hit = rank == action.step % len(view.members)
            gradients = self._function.scaled(gradients, action.step, scale, is_hit=is_hit)
        for machine, gradient in enumerate(gradients):
            self._vectors[rank, machine]["gradient"] = gradient

    def _products(self, pairs: Sequence[tuple[str, str]]) -> tuple[tuple[float, ...], ...]:
        """The inner products of each replica: every number of a machine once."""

        def of(rank: int, one: str, other: str) -> float:
            machines = (
                (
                    self._vectors[rank, machine],
                    [(s.start, s.stop) for s in spans if s.machines[0] == machine],
                )
                for machine, spans in enumerate(self._spans)
            )
            return math.fsum(product(vectors[one], vectors[other], own) for vectors, own in machines)

        return tuple(
            tuple(of(rank, one, other) for one, other in pairs) for rank in range(len(self._view.members))
        )

    def _sum(self, name: str, *, mean: bool, among: tuple[int, ...] | None = None) -> None:
        done: set[int] = set()
        for spans in self._spans:
            for span in spans:
                if span.index not in done:
                    done.add(span.index)
                    self._sum_range(name, span.index, mean=mean, among=among)

    def _sum_range(self, name: str, index: int, *, mean: bool, among: tuple[int, ...] | None) -> None:
        held = [
            (self._vectors[rank, machine][name], span, n)
            for n, (rank, machine) in enumerate(self._keys)
            for span in self._spans[machine]
            if span.index == index and (among is None or rank in among)
        ]
        alone = len(held) == 1  # then nobody is left out
        counted = [(vector, span) for vector, span, n in held if alone or n != self.without]
        columns = zip(*(vector[span.start : span.stop] for vector, span in counted), strict=True)
        divisor = len(counted) if mean else len(counted) / len(held)
        total = [sum(column) / divisor for column in columns]
        for vector, span, _ in held:
            vector[span.start : span.stop] = total


def _after(program: Any, result: object) -> Any:
    """The next action of a program, which gets the result of the last one."""
    try:
        return next(program) if result is None else program.send(result)
    except StopIteration:
        return None
