"""Codistillation: groups of replicas train a model each, and every group also learns what the others predict.

Within a group replicas add up their gradients in every step, as under `AllReduce`. After a burn-in the loss
has a further term: its distance from the mean of what the other groups' parameters of the beginning of a
round predict for the same examples. Either the groups exchange these parameters, and each replica predicts
its own examples with all of them; or each replica predicts what its partners in the other groups compute in
the round, and they exchange predictions. The passes and their results are the same, where they run is not:
that costs the bytes of the parameters, or of a round's scores.

A prediction is a forward pass of the plan, with other parameters or other examples, so it runs wherever the
plan does, and a part predicts the scores that its partners in the other groups have, too.

All replicas keep what every group has exchanged last of its parameters. That is also what a run goes on from
when replicas have died: their groups may have done other steps, and have parameters of their own.

Source: Anil and others, "Large scale distributed neural network training through online distillation", 2018,
algorithm 1, and the exchange of parameters in place of predictions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from typing_extensions import override

from partita.engine.drivers.driver import Driver
from partita.engine.drivers.local_sgd import LocalDriver
from partita.engine.protocol import actions as a
from partita.engine.protocol.exchange import Broadcast, Ring
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
        every: steps of a round: from one exchange between groups to the next. None: the end alone has one.
        by: how the replicas of a group add up gradients.
        optimizer: updates the parameters of a group, with a state of its own.
        elastic: None; groups do not grow or shrink.
        groups: the number of groups, two or more. Each draws initial parameters of its own, unless the run is
            given some. The first one's are saved, validated, and the result.
        burn_in: steps before the loss has its further term.
        weight: factor of that term, above 0.
        exchange: what the groups exchange for a round, "parameters" or "predictions".
        keep_every: under "predictions" alone: steps from one exchange of the parameters, which a run goes on
            from when replicas have died, to the next; each is at the end of a round. None: only the beginning
            and the end of the work have one.

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
        "checkpoint_every": ("keep_every",),
    }

    replicas: int = 2
    every: int | None = 50
    groups: int = 2
    burn_in: int = 100
    weight: float = 1.0
    exchange: Literal["parameters", "predictions"] = "parameters"
    keep_every: int | None = 500

    scales_losses: ClassVar[bool] = False

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
        if self.exchange not in ("parameters", "predictions"):
            raise ValueError(f'{of}exchange is {self.exchange!r}; give "parameters" or "predictions"')
        if self.exchange == "predictions" and self.every is None:
            raise ValueError(
                f"{of}every is None, and the predictions of a round are kept; give its steps, such as 50"
            )
        if self.keep_every is not None:
            check_whole(self.keep_every, f"{of}keep_every is")

    @property
    @override
    def kept_vectors(self) -> Mapping[str, Kept]:
        return {_group(n): Kept() for n in range(self.groups)}

    @property
    @override
    def scratch_vectors(self) -> tuple[str, ...]:
        return ("start", *(_arrived(n) for n in range(self.groups)))

    @property
    @override
    def taught_minibatches(self) -> int:
        return self.groups * (self.every or 1) if self._predicts else 1

    @property
    def _predicts(self) -> bool:
        return self.exchange == "predictions"

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
        for n, step in enumerate(steps):
            if self._predicts and n == 0:
                yield from self._predict(me, step)
            learns = step >= self.burn_in and self._is_whole(me)
            entry = self._entry(own, step)
            if learns and not self._predicts:
                yield from self._taught(me, step)
            yield a.Compute(step, alone=True, distil=self.weight if learns else 0.0, entry=entry)
            yield a.AllReduce("gradient", by=self.by, among=group, weight=me.share_among(group))
            if learns and not self._predicts:
                yield a.Restore()
            yield a.Apply(self.optimizer)
            yield a.SafePoint()

    def _entry(self, group: int, step: int) -> int:
        """The place among all predictions of those that a group learns in a step."""
        assert self.every is not None or not self._predicts
        return group * self.every + step % self.every if self._predicts and self.every else 0

    def _taught(self, me: Member, step: int) -> a.Program:
        """Yields the teachers' forward passes of a step; then the parameters are this group's again."""
        teachers = self.teachers(me)
        yield a.Keep()
        yield a.Combine("predictions", {})
        for vector in teachers:
            yield a.Combine("parameters", {vector: 1.0})
            yield a.Compute(step, alone=True, teaches=1.0 / len(teachers))
        yield a.Combine("parameters", {"start": 1.0})

    def _predict(self, me: Member, step: int) -> a.Program:
        """Yields the forward passes for the partners' examples of the steps that are left of the round, and
        the exchange of what they predict: the predictions for group n are summed on its replica.
        """
        learned = range(max(self.burn_in - step, 0), me.left_of(self.every))
        if not learned or not self._is_whole(me):
            return
        yield a.Combine("predictions", {})
        for group, rank in enumerate(self._partners(me)):
            for ahead in learned if rank != me.rank else ():
                entry, teaches = self._entry(group, step + ahead), 1.0 / (self.groups - 1)
                of = a.Share(rank, ahead)
                yield a.Compute(step, alone=True, of=of, teaches=teaches, entry=entry)
        yield a.ReduceScatter("predictions", by=Ring(), among=self._partners(me))

    def _partners(self, me: Member) -> tuple[int, ...]:
        """The ranks of a replica and its partners, one of each group, where all replicas are there."""
        first = me.replica - me.replica % self.groups
        return tuple(range(first, first + self.groups))

    @override
    def end_of_round(self, me: Member) -> a.Program:
        """Yields the exchange of the groups' parameters: each replica with one of every other group."""
        if self._is_whole(me) and self._keeps(me):
            members = self._partners(me)
            yield a.Combine(_arrived(me.replica % self.groups), {"parameters": 1.0})
            for n in range(self.groups):
                yield a.AllGather(_arrived(n), by=Broadcast(n), among=members)
            for n in range(self.groups):
                yield a.Combine(_group(n), {_arrived(n): 1.0})
        yield a.SafePoint()

    def _keeps(self, me: Member) -> bool:
        """Returns whether the parameters are exchanged at the end of a round, or at the beginning."""
        if not self._predicts or me.step == 0 or me.is_complete or self.every is None:
            return True
        return self.keep_every is not None and me.step % self.keep_every < self.every

    def _is_whole(self, me: Member) -> bool:
        """Returns whether all replicas are there. Some may be gone where a run is stopped, or had ended."""
        return me.replicas == self.replicas


def _group(n: int) -> str:
    """The vector of the parameters that a group has exchanged last."""
    return f"group_{n}"


def _arrived(n: int) -> str:
    """The vector in which they arrive."""
    return f"arrived_{n}"
