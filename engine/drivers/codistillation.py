"""Codistillation: groups of replicas train a model each, and every group also learns what the others predict.

Within a group replicas add up their gradients in every step, as under `AllReduce`; the groups exchange their
parameters every so many steps alone. After a burn-in the loss has a further term: its distance from the mean
of what the other groups' parameters, as they were exchanged last, predict for the same examples. Those are
forward passes of the plan with other parameters in place, so they run wherever the plan does, and a teacher's
prediction is where the scores are that it is compared with.

All replicas keep what every group has exchanged last. That is also what a run goes on from when replicas have
died: their groups may have done other steps, and have parameters of their own.

Source: Anil and others, "Large scale distributed neural network training through online distillation", 2018,
algorithm 1 (stale parameters in place of predictions).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from partita.engine.drivers.driver import Driver
from partita.engine.drivers.local_sgd import LocalDriver
from partita.engine.protocol import actions as a
from partita.engine.protocol.exchange import Broadcast
from partita.engine.protocol.kept_vector import Kept
from partita.engine.protocol.views import Member
from partita.layers.checks import check_fields, check_number, check_whole
from partita.layers.losses import Loss
from partita.partitioner.plan import Plan


@dataclass(frozen=True)
class Codistillation(LocalDriver):
    """The settings of codistillation.

    Args:
        replicas: copies of the network in all, the same number in each group: replica r is of group r modulo
            `groups`. Each is cut over all machines of the plan.
        every: steps from one exchange of the groups' parameters to the next. None: only the end has one.
        by: how the replicas of a group add up gradients.
        optimizer: updates the parameters of a group, with a state of its own.
        elastic: None; groups do not grow or shrink.
        groups: the number of groups, two or more. Each draws initial parameters of its own, unless the run is
            given some. The first one's are saved, validated, and the result.
        burn_in: steps before the loss has its further term.
        weight: factor of that term, above 0.

    Raises:
        ValueError: a setting is out of range, or the replicas are no multiple of the groups.
    """

    _meant: ClassVar[Mapping[str, str | tuple[str, ...]]] = {
        **LocalDriver._meant,
        "replicas_per_group": "replicas counts those of all groups; write replicas=4, groups=2",
        "burn_in_steps": ("burn_in",),
        "warmup": ("burn_in",),
        "distill_weight": ("weight",),
        "alpha": ("weight",),
        "exchange_every": ("every",),
        "teachers": ("groups",),
    }

    replicas: int = 2
    every: int | None = 50
    groups: int = 2
    burn_in: int = 100
    weight: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        of = "Codistillation's "
        check_whole(self.groups, f"{of}groups is", least=2)
        check_whole(self.burn_in, f"{of}burn_in is", least=0)
        check_fields(self, check_number, "weight", of=of)
        if self.replicas % self.groups:
            raise ValueError(
                f"{of}replicas is {self.replicas}, and there are {self.groups} groups of equal size; give a "
                f"multiple of {self.groups}"
            )
        if self.elastic is not None:
            raise ValueError(f"{of}elastic is {self.elastic}; leave it out: groups do not grow or shrink")

    @property
    @override
    def kept_vectors(self) -> Mapping[str, Kept]:
        return {_group(n): Kept() for n in range(self.groups)}

    @property
    @override
    def scratch_vectors(self) -> tuple[str, ...]:
        return ("start", *(_arrived(n) for n in range(self.groups)))

    @override
    def fitted(self, plan: Plan) -> Driver:
        for name in plan.graph.losses:
            loss = plan.graph[name].layer
            if not isinstance(loss, Loss) or not loss.distils:
                raise ValueError(
                    f"'{name}' is a {loss.kind}, whose gradient is no prediction less a target, so that "
                    "predictions cannot be its targets; take SoftmaxCrossEntropy, BinaryCrossEntropy or "
                    "HalfSquaredError"
                )
        return self

    @override
    def replica(self, me: Member) -> a.Program:
        if me.step == me.points == 0:
            yield from self.end_of_round(me)
        elif me.anew:
            yield a.Combine("parameters", {_group(me.replica % self.groups): 1.0})
            yield a.SafePoint()
        for steps in me.rounds(self.every):
            yield from self._steps(me, steps)
            yield from self.end_of_round(me)

    def teachers(self, me: Member) -> tuple[str, ...]:
        """Returns the vectors of the parameters whose predictions a replica learns."""
        return tuple(_group(n) for n in range(self.groups) if n != me.replica % self.groups)

    def _steps(self, me: Member, steps: Iterator[int]) -> a.Program:
        own = me.replica % self.groups
        group = tuple(rank for rank, one in enumerate(me.members) if one % self.groups == own)
        for step in steps:
            learns = step >= self.burn_in and self._is_whole(me)
            if learns:
                yield from self._taught(me, step)
            yield a.Compute(step, alone=True, distil=self.weight if learns else 0.0)
            yield a.AllReduce("gradient", by=self.by, among=group, weight=me.share_among(group))
            if learns:
                yield a.Restore()
            yield a.Apply(self.optimizer)
            yield a.SafePoint()

    def _taught(self, me: Member, step: int) -> a.Program:
        """Yields the teachers' forward passes of a step; then the parameters are this group's again."""
        teachers = self.teachers(me)
        yield a.Keep()
        for vector in teachers:
            yield a.Combine("parameters", {vector: 1.0})
            yield a.Compute(step, alone=True, teaches=1.0 / len(teachers))
        yield a.Combine("parameters", {"start": 1.0})

    @override
    def end_of_round(self, me: Member) -> a.Program:
        """Yields the exchange of the groups' parameters: each replica with one of every other group."""
        if self._is_whole(me):
            first = me.replica - me.replica % self.groups
            members = tuple(range(first, first + self.groups))
            yield a.Combine(_arrived(me.replica % self.groups), {"parameters": 1.0})
            for n in range(self.groups):
                yield a.AllGather(_arrived(n), by=Broadcast(n), among=members)
            for n in range(self.groups):
                yield a.Combine(_group(n), {_arrived(n): 1.0})
        yield a.SafePoint()

    def _is_whole(self, me: Member) -> bool:
        """Returns whether all replicas are there. Some may be gone where a run is stopped, or had ended."""
        return me.replicas == self.replicas


def _group(n: int) -> str:
    """The vector of the parameters that a group has exchanged last."""
    return f"group_{n}"


def _arrived(n: int) -> str:
    """The vector in which they arrive."""
    return f"arrived_{n}"
