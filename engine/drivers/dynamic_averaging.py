"""Dynamic averaging: replicas take means only when one has drifted too far from the reference.

All replicas keep a reference, the last mean of all of them. After `every` local steps each has a local
condition: the squared distance of its parameters from the reference is at most `delta`. While all hold,
nothing but these distances is sent. Where some do not, the violators take their mean, and further replicas
join them, one by one, until the mean meets the condition itself; only when all take part is their mean the
next reference.

Source: Kamp and others, "Efficient decentralized deep learning by dynamic model averaging", 2018, section 3
and algorithm 1 (there a coordinator polls the replicas; here the distances are added up by a small
all-reduce, so that each replica knows who takes part).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from typing_extensions import override

from partita.engine.drivers.local_sgd import LocalDriver
from partita.engine.protocol import actions as a
from partita.engine.protocol.exchange import Tree
from partita.engine.protocol.kept_vector import Kept
from partita.engine.protocol.views import Member

_DRIFT: Final = (("drift", "drift"),)
_MEAN: Final = (("mean", "mean"),)


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
        given: Any = self.delta  # whatever a user wrote
        if not isinstance(given, int | float) or not 0 < given < math.inf:
            raise ValueError(
                f"DynamicAveraging's delta is {self.delta!r}; give a number above 0, and LocalSGD takes the "
                "mean in every round"
            )

    @property
    @override
    def kept_vectors(self) -> Mapping[str, Kept]:
        return {"reference": Kept()}

    @property
    @override
    def scratch_vectors(self) -> tuple[str, ...]:
        return "drift", "mean"

    @override
    def end_of_round(self, me: Member) -> a.Program:
        yield a.Combine("drift", {"parameters": 1.0, "reference": -1.0})
        squares = yield a.Dots(_DRIFT, by=Tree())
        members = tuple(rank for rank in range(me.replicas) if squares[rank][0] > self.delta)
        if me.is_complete:
            members = tuple(range(me.replicas))  # the result of the work is the mean of all
        while members:
            yield a.Combine("mean", {"drift": 1.0})
            if len(members) > 1:
                yield a.AllReduce("mean", by=self.by, mean=True, among=members)
            if len(members) == me.replicas:
                break
            found = yield a.Dots(_MEAN, by=Tree())
            if found[members[0]][0] <= self.delta:
                break
            members = tuple(sorted((*members, _next(members, me))))
        if me.rank in members:
            yield a.Combine("parameters", {"reference": 1.0, "mean": 1.0})
        if len(members) == me.replicas:
            yield a.Combine("reference", {"parameters": 1.0})
        yield a.SafePoint()


def _next(members: tuple[int, ...], me: Member) -> int:
    """The rank of the replica that joins: others begin in other rounds."""
    ranks = ((me.step + n) % me.replicas for n in range(me.replicas))
    return next(rank for rank in ranks if rank not in members)
