"""Evaluates the validation data on a part: the forward program of the plan, over the part's own parameters.

It is the form of the network that `evaluate` plays: layers that drop or sample do not, and running averages
are used, not updated. The minibatches are those of `evaluate`, too, so that sums have the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from typing_extensions import override

from partita.engine.data.prepared import HostData
from partita.engine.kernels.kernel import Array
from partita.engine.protocol.events import Received, Refuse
from partita.engine.protocol.names import part_name
from partita.engine.protocol.part_validation import RestartValidation, RunValidation, ValidationDone
from partita.engine.runtime.buffers import Buffers, Vectors
from partita.engine.runtime.compute import Computations
from partita.engine.runtime.feed import Examples, Feed
from partita.engine.runtime.metric import Metric
from partita.engine.runtime.player import Player
from partita.engine.runtime.recorded_steps import StepSampler
from partita.engine.runtime.task import HostContext
from partita.engine.runtime.trace import Recorder
from partita.layers.box import Box
from partita.partitioner.plan import Plan


@dataclass(frozen=True)
class ValidationData:
    """The data of validations, and the plan by which they are evaluated.

    Args:
        plan: of the run; a batch method computes portions by a plan with another batch.
        sources: for each input and target, `[example, *shape]`; or data that is prepared ahead.
        examples: their number.
        metrics: figures that are reported beside the loss.
    """

    plan: Plan
    sources: HostData
    examples: int
    metrics: tuple[Metric, ...] = ()

    @property
    def minibatches(self) -> int:
        """The number of minibatches; the last one repeats the last example, which counts for nothing."""
        return -(-self.examples // self.plan.batch)

    def real(self, unit: int) -> int:
        """Returns the number of examples of a minibatch that count."""
        return min(self.plan.batch, self.examples - unit * self.plan.batch)


class _OrderedFeed(Feed):
    """Takes the examples of a minibatch in their order."""

    def __init__(self, examples: Examples, data: ValidationData) -> None:
        self._examples, self._data = examples, data
        self._chosen: Array = np.zeros(0, np.int64)

    def choose(self, unit: int) -> None:
        """Chooses the examples of a minibatch."""
        self._chosen = self._numbers(unit)
        self.count, self.visit = self._data.real(unit), unit
        ahead = range(unit + 1, min(unit + 1 + self._examples.steps_ahead, self._data.minibatches))
        if ahead:
            self._examples.ahead([(self._numbers(one), 0) for one in ahead])

    def _numbers(self, unit: int) -> Array:
        batch = self._data.plan.batch
        return np.minimum(np.arange(unit * batch, (unit + 1) * batch), self._data.examples - 1)

    @override
    def fill(self, name: str, box: Box, out: Array, *, first: int = 0) -> None:
        self._examples.put(name, box, out, self._chosen, first=first)

    @override
    def close(self) -> None:
        self._examples.close()


def start_player(host: HostContext, computations: Computations, *, replica: int, lanes: int) -> Player:
    """Starts the kernel threads of a part that exchanges messages with other parts of its replica."""
    host_of, program = partial(part_name, replica), computations.buffers.program
    recorder = Recorder(program, host_of)
    return Player(
        computations,
        host_of=host_of,
        send=host.send,
        wake=host.wake,
        lanes=lanes,
        recorder=recorder,
        sampler=StepSampler(program, recorder),
    )


class ValidationRunner:
    """Evaluates minibatches, one after the other, on kernel threads of its own.

    Attributes:
        watchdog: of its computations.
    """

    def __init__(
        self,
        data: ValidationData,
        examples: Examples,
        vectors: Vectors,
        host: HostContext,
        *,
        machine: int,
        replica: int,
    ) -> None:
        """Allocates, and compiles the forward functions.

        Args:
            data: the validation data.
            examples: the same, opened on this host.
            vectors: of the part, whose parameters are read.
            host: the context of the host.
            machine: of the part.
            replica: of the part.
        """
        plan = data.plan
        self._feed = _OrderedFeed(examples, data)
        buffers = Buffers(plan, machine, plan.forward_programs[machine], vectors, keep=plan.kept)
        self._computations = Computations(buffers, self._feed, metrics=data.metrics)
        self.watchdog = self._computations.watchdog
        lanes = plan.cluster.machines[machine].threads
        self._player = start_player(host, self._computations, replica=replica, lanes=lanes)
        self._next: RunValidation | None = None  # ordered, not begun

    def carry_out(self, effect: RunValidation | RestartValidation) -> None:
        """Begins a minibatch as soon as that is possible, or drops the one under way."""
        match effect:
            case RestartValidation(first=first):
                self._next = None
                self._player.start(first)
            case RunValidation():
                self._next = effect
                self._begin()

    def _begin(self) -> None:
        order = self._next
        if order is not None and self._player.may_begin():
            self._next = None
            self._computations.metrics.clear()
            self._feed.choose(order.unit)
            self._player.begin(order.number)

    def poll(self, now: float) -> Iterator[ValidationDone]:
        """Goes on, and yields the ends of minibatches. Raises what a computation has raised."""
        for over in self._player.poll():
            self._computations.finish()
            found = self._computations.metrics
            yield ValidationDone(over.step, found.loss, found.correct, found.sums)
        self._begin()

    def receive(self, event: Received) -> None:
        """Handles a message of another part."""
        self._player.receive(event)

    def refused(self) -> list[Refuse]:
        """Returns the messages since the last call that did not fit the program."""
        return self._player.refused()

    def close(self) -> None:
        """Ends all threads, after the computations that are going on."""
        self._player.close()
        self._feed.close()
