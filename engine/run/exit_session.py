"""A session that plays a network up to one exit after the other, each on the examples that go on."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from typing_extensions import override

from partita.engine.drivers.session import Steps
from partita.engine.kernels.kernel import Array
from partita.engine.protocol.session_messages import Play
from partita.engine.run.session import Session
from partita.engine.run.step import Sent
from partita.engine.runtime.exit_phases import ExitTask
from partita.partitioner.plan import Plan


@dataclass(frozen=True)
class _Stages(Steps):
    """The driver of a session in stages.

    Args:
        scores: the `ends` of `ExitTask`.
    """

    scores: tuple[str, ...] = ()

    @override
    def tasks(self, plan: Plan) -> list[Any]:
        machines = range(len(plan.cluster))
        return [ExitTask(plan, machine, self.replica, ends=self.scores) for machine in machines]


@dataclass(frozen=True)
class Scored:
    """The scores of some examples at an exit.

    Args:
        stage: number of the exit.
        examples: numbers of the examples.
        scores: `[example, class]`.
        sent: what each machine has sent to others in the stage.
    """

    stage: int
    examples: Sequence[int]
    scores: Array
    sent: tuple[Sent, ...]


@dataclass(eq=False, repr=False)
class ExitSession(Session):
    """Plays each stage on whole batches of examples that have come so far, as soon as there is one.

    Use it from one thread only: after each result of `next`, say which of its examples go on. For the other
    arguments see `Session`.

    Args:
        plan: without losses, in one micro-batch, and not cut into tiles.
        ends: the layers of the exits' scores, in the order of the exits.
    """

    ends: tuple[str, ...] = field(kw_only=True)

    @override
    def __post_init__(self, parameters: Any, show: Any) -> None:
        self._waiting: list[deque[int]] = [deque() for _ in self.ends]
        self._onward: tuple[int, ...] = ()
        super().__post_init__(parameters, show)

    @override
    def _make_driver(self) -> Steps:
        return _Stages(scores=self.ends)

    def first(self, batch: Mapping[str, Array], examples: Sequence[int]) -> Scored:
        """Plays the first stage over a batch.

        Args:
            batch: inputs by name, `[batch, *shape]`.
            examples: numbers of its real examples.

        Raises:
            ValueError: the batch does not fit the network.
            HostError: a host fails, dies, or does not answer in time.
        """
        arrays = self._checked(batch, len(examples), ())
        assert arrays is not None
        inputs = [[place.of(arrays) for place in part[0]] for part in self._feeds_by_phase]
        return self._stage(0, list(examples), inputs)

    def later(self, *, flush: bool = False) -> Scored | None:
        """Plays the last stage that has a whole batch of examples; None if there is none.

        Args:
            flush: whether fewer examples than a batch are enough, where no stage has a whole one.

        Raises:
            HostError: a host fails, dies, or does not answer in time.
        """
        waiting = [stage for stage, some in enumerate(self._waiting) if len(some) >= self.plan.batch]
        if not waiting and flush:  # the first such stage: others may still receive examples from it
            waiting = [stage for stage, some in enumerate(self._waiting) if some][:1]
        if not waiting:
            return None
        some = self._waiting[waiting[-1]]
        examples = [some.popleft() for _ in range(min(self.plan.batch, len(some)))]
        return self._stage(waiting[-1], examples, None)

    def go_on(self, scored: Scored, places: Sequence[int]) -> None:
        """Keeps examples of the last result for the next stage, by their places in it."""
        self._onward = tuple(places)
        if places:
            self._waiting[scored.stage + 1].extend(scored.examples[place] for place in places)

    def _stage(self, stage: int, examples: list[int], inputs: list[list[Array]] | None) -> Scored:
        end = self.ends[stage]
        order = Play(self._step, len(examples), (end,), phase=stage, onward=self._onward)
        parts = self._backend.play(order, inputs)
        self._step, self._onward = self._step + 1, ()
        step = self._collector.step(order, parts, self._clocks)
        scores = np.moveaxis(step.collected[end], -1, 0)[: len(examples)]
        return Scored(stage, examples, scores, step.sent)
