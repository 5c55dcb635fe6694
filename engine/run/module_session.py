"""A session whose steps are a forward pass, and a backward pass from gradients of the outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from typing_extensions import override

from partita.engine.drivers.session import Steps
from partita.engine.kernels.kernel import Array
from partita.engine.protocol.session_messages import Play
from partita.engine.run.given_gradients import GradientPlan
from partita.engine.run.session import Session
from partita.engine.run.step import Step
from partita.engine.runtime.two_phases import BACKWARD, FORWARD, TwoPhaseTask
from partita.partitioner.plan import Plan


@dataclass(frozen=True)
class TwoPhases(Steps):
    """The driver of a session in two phases.

    Args:
        at_rest: whether layers compute what they compute at rest.
    """

    at_rest: bool = False

    @override
    def tasks(self, plan: Plan) -> list[Any]:
        machines = range(len(plan.cluster))
        return [
            TwoPhaseTask(plan, machine, self.replica, train=True, at_rest=self.at_rest)
            for machine in machines
        ]


@dataclass(eq=False, repr=False)
class ModuleSession(Session):
    """Plays forward passes, and backward passes of the last forward pass.

    Use it from one thread only. For the other arguments see `Session`.

    Args:
        given: the plan with its ends; `plan` is that of `given`.
        at_rest: whether layers compute what they compute at rest.
    """

    given: GradientPlan = field(kw_only=True)
    at_rest: bool = field(default=False, kw_only=True)

    @override
    def _make_driver(self) -> Steps:
        return TwoPhases(train=True, at_rest=self.at_rest)

    def forward(self, inputs: Mapping[str, Array], *, examples: int, visit: int) -> Mapping[str, Array]:
        """Returns the outputs, node-major: `[*shape, batch]`.

        Args:
            inputs: by name, `[batch, *shape]`.
            examples: the real ones of the batch.
            visit: number of the batch, from which random numbers follow.

        Raises:
            HostError: a host fails, dies, or does not answer in time.
        """
        return self._phase(FORWARD, inputs, self.given.outputs, examples, visit).collected

    def backward(
        self, gradients: Mapping[str, Array], *, examples: int, visit: int
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """Returns the gradients of the parameters by name, and those of inputs: `[*shape, batch]`.

        Args:
            gradients: of each output, `[batch, *shape]`; 0 for examples that are not real.
            examples: see `forward`.
            visit: see `forward`.

        Raises:
            HostError: a host fails, dies, or does not answer in time.
        """
        batch = {self.given.targets[name]: one for name, one in gradients.items()}
        entries = self.given.entries
        collect = ("gradient", *(buffer for some in entries.values() for buffer in some))
        step = self._phase(BACKWARD, batch, collect, examples, visit)
        found = {name: _sum([step.collected[one] for one in some]) for name, some in entries.items()}
        return dict(step.vectors["gradient"]), found

    def _phase(
        self, phase: int, batch: Mapping[str, Array], collect: Sequence[str], examples: int, visit: int
    ) -> Step:
        inputs = [[place.of(batch) for place in part[phase]] for part in self._feeds_by_phase]
        order = Play(self._step, examples, tuple(collect), phase=phase, visit=visit)
        parts = self._backend.play(order, inputs)
        self._step += 1
        return self._collector.step(order, parts, self._clocks)


def _sum(arrays: Sequence[Array]) -> Array:
    first, *others = arrays
    for other in others:
        first = first + other
    return first
