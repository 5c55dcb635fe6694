"""Dynamic averaging: replicas take means only when one has drifted too far from the reference.

All replicas keep a reference, the last mean of all of them. After `every` local steps each has a local
condition: the squared distance of its parameters from the reference is at most `delta`. While all hold,
nothing but these distances is sent. Where some do not, the first of the violators collects the drifts of the
others, and of further replicas, one by one, until their mean meets the condition itself; then all that have
given their drift get the mean. Only when all replicas take part is their mean the next reference. As many
violations as there are replicas, since the last reference, make all take part at once.

A round in which B replicas take part sends 2 (B - 1) times the parameters, whatever the order in which they
joined, beside the distances.

Source: Kamp and others, "Efficient decentralized deep learning by dynamic model averaging", 2018, section 3
and algorithm 1. There a coordinator collects the models. Here the first violator does, the distances are
added up by a small all-reduce, so that each replica knows who takes part, and any mean of all replicas, not
only one by the count, begins the count of violations anew.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from typing_extensions import override

from partita.engine.drivers.local_sgd import LocalDriver
from partita.engine.protocol import actions as a
from partita.engine.protocol.exchange import Broadcast, Tree
from partita.engine.protocol.kept_vector import Kept
from partita.engine.protocol.views import Member
from partita.layers.checks import check_number

_DRIFT: Final = (("drift", "drift"),)


@dataclass(frozen=True)
class DynamicAveraging(LocalDriver):
    """The settings of dynamic averaging.

    Args:
        replicas: copies of the network, which compute side by side. Each is cut over all machines of the
            plan.
        every: steps from one test of the local conditions to the next. None: one test, at the end.
        by: how replicas add up vectors.
        optimizer: updates the parameters of each replica by its own gradients, with a state of its own.
        elastic: the least and the most replicas, as under `AllReduce`.
        loss_scale: of a plan in float16: the settings of each replica's scale; None: `LossScale()`.
        delta: the largest squared distance of a replica's parameters from the reference, above 0.

    Raises:
        ValueError: a setting is out of range.
    """

    _meant: ClassVar[Mapping[str, str | tuple[str, ...]]] = {
        **LocalDriver._meant,
        "threshold": ("delta",),
        "divergence": ("delta",),
    }

    delta: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        rule = "; give a number above 0, and LocalSGD takes the mean in every round"
        check_number(self.delta, "DynamicAveraging's delta is", rule=rule)

    @property
    @override
    def kept_vectors(self) -> Mapping[str, Kept]:
        return {"reference": Kept()}

    @property
    @override
    def scratch_vectors(self) -> tuple[str, ...]:
        return ("drift",)

    @override
    def replica(self, me: Member) -> a.Program:
        violations = 0  # since the last reference; begins again after a change of the replicas
        for steps in me.rounds(self.every):
            yield from self.local_steps(me, steps)
            yield a.Combine("drift", {"parameters": 1.0, "reference": -1.0})
            squares = yield a.Dots(_DRIFT, by=Tree())
            members = tuple(rank for rank in range(me.replicas) if squares[rank][0] > self.delta)
            violations += len(members)
            if violations >= me.replicas or me.is_complete:  # the result of the work is the mean of all
                members = tuple(range(me.replicas))
            members = yield from self._balanced(members, me)
            if me.rank in members:
                yield a.Combine("parameters", {"reference": 1.0, "drift": 1.0})
            if len(members) == me.replicas:
                yield a.Combine("reference", {"parameters": 1.0})
                violations = 0
            yield a.SafePoint()

    def _balanced(self, members: tuple[int, ...], me: Member) -> Generator[a.Action, Any, tuple[int, ...]]:
        """Yields the actions by which "drift" becomes the mean over those who take part; returns their ranks.

        Args:
            members: the violators, or all replicas.
            me: the part.
        """
        if len(members) == me.replicas:
            yield a.AllReduce("drift", by=self.by, mean=True)
        if len(members) in (0, me.replicas):
            return members
        root, joining = members[0], members[1:]
        while True:
            if joining:
                among = tuple(sorted((root, *joining)))
                yield a.ReduceScatter("drift", by=Broadcast(among.index(root)), among=among)
            if len(members) == me.replicas:
                break
            squares = yield a.Dots(_DRIFT, by=Tree())  # of the sum of the members' drifts, at the root
            if squares[root][0] <= self.delta * len(members) ** 2:
                break
            joining = (_next(members, me),)
            members = tuple(sorted((*members, *joining)))
        if me.rank == root:
            yield a.Combine("drift", {"drift": 1.0 / len(members)})
        yield a.AllGather("drift", by=Broadcast(members.index(root)), among=members)
        return members


def _next(members: tuple[int, ...], me: Member) -> int:
    """The rank of the replica that joins: others begin in other rounds."""
    ranks = ((me.step + n) % me.replicas for n in range(me.replicas))
    return next(rank for rank in ranks if rank not in members)
