"""Exchanges among replicas in virtual time: barriers that take what their algorithm's alpha-beta model says.

Every replica comes to exchanges in the same order, so the n-th of one is the n-th of all: one exchange, or
one for each group of replicas.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from examples.reproduce.virtual.hosts import Hosts
from examples.reproduce.virtual.replica import Replica
from partita.engine.parameters import Vector
from partita.engine.protocol import actions as a
from partita.engine.protocol.exchange import Algorithm, Broadcast

Action: TypeAlias = a.AllReduce | a.ReduceScatter | a.AllGather | a.Dots | a.ExchangeMessages
After: TypeAlias = Callable[[float, Callable[[], None]], None]
Resume: TypeAlias = Callable[[Replica, Any], None]


@dataclass
class _Joint:
    """One exchange: what has arrived, and who waits for the result."""

    found: dict[int, Vector] = field(default_factory=dict)
    result: Vector | None = None
    begun: bool = False
    leaves_out: bool = False
    waiting: list[Callable[[], None]] = field(default_factory=list)


@dataclass(frozen=True)
class _Form:
    """Vector and members that a replica exchanges by an action.

    Args:
        own: the replica's numbers.
        n_bytes: that they take on a link.
        merge: makes the result of those of all replicas, by rank.
        take: puts a copy of the result in place, and returns that of the action.
        members: the ranks that take part.
        needed: how many of them begin it.
        share: of a whole all-reduce of `n_bytes`.
    """

    own: Vector
    n_bytes: float
    merge: Callable[[Mapping[int, Vector]], Vector]
    take: Callable[[Vector], Any]
    members: Sequence[int]
    needed: frozenset[int] | int
    share: float = 1.0

    def is_met(self, ranks: set[int]) -> bool:
        """Returns whether all are there without whom it does not begin."""
        return len(ranks) >= self.needed if isinstance(self.needed, int) else self.needed <= ranks


class Exchanges:
    """The exchanges of a run.

    Attributes:
        n_bytes, n_messages: sent so far; a message has a vector, or a segment of one.
    """

    def __init__(self, hosts: Hosts, *, after: After, resume: Resume) -> None:
        self.n_bytes, self.n_messages = 0.0, 0
        self._hosts, self._after, self._resume = hosts, after, resume
        self._joints: list[dict[tuple[int, ...], _Joint]] = []  # by members

    def leaves_out(self, one: Replica) -> bool:
        """Returns whether the others have gone on without what the replica computes."""
        joints = self._joints[one.exchanges].values() if one.exchanges < len(self._joints) else ()
        return any(joint.leaves_out for joint in joints)

    def clear(self) -> None:
        """Begins anew with the first exchange."""
        self._joints.clear()

    def join(self, one: Replica, action: Action) -> bool:
        """Joins an exchange; returns whether the replica takes no part, and goes on."""
        form = self._form(one, action)
        if len(self._joints) == one.exchanges:
            self._joints.append({})
        joints, one.exchanges = self._joints[one.exchanges], one.exchanges + 1
        if one.rank not in form.members:
            return True
        joint = joints.setdefault(tuple(form.members), _Joint())

        def taken() -> None:
            assert joint.result is not None
            self._resume(one, form.take(joint.result))

        joint.waiting.append(taken)
        if joint.result is not None:
            self._after(0.0, joint.waiting.pop())
        elif not joint.begun:
            joint.found[one.rank] = form.own
            if form.is_met(set(joint.found)):
                self._begin(joint, form, action.by)
        return False

    def _begin(self, joint: _Joint, form: _Form, by: Algorithm) -> None:
        """Begins the exchange itself: all that wait get the result when its messages have arrived."""
        joint.begun, joint.leaves_out = True, by.backup_workers > 0
        labels, n_bytes = [f"machine {rank}" for rank in form.members], round(form.n_bytes)
        segments = max(1, by.segments(labels))
        sent = (by.sent(n, labels, lambda segment: n_bytes // segments) for n in range(len(labels)))
        self.n_bytes += form.share * sum(sent)
        messages = sum(by.sent(n, labels, lambda segment: 1) for n in range(len(labels)))
        self.n_messages += round(form.share * messages)
        found = dict(sorted(joint.found.items()))

        def arrived() -> None:
            joint.result = form.merge(found)
            waiting, joint.waiting = joint.waiting, []
            for one in waiting:
                one()

        self._after(form.share * by.seconds(labels, n_bytes, self._hosts.link), arrived)

    # Forms.

    def _form(self, one: Replica, action: Action) -> _Form:
        match action:
            case a.AllReduce():
                return self._sum(one, action)
            case a.Dots(pairs=pairs):
                if action.among is not None:
                    raise ValueError(f"{action} cannot be played in virtual time; leave loss_scale out")
                own, ranks = one.products(pairs), range(one.replicas)
                return _Form(own, own.nbytes * len(ranks), _stacked, _numbers, ranks, len(ranks))
            case (
                a.ReduceScatter(vector=vector, by=Broadcast(root=root))
                | a.AllGather(vector=vector, by=Broadcast(root=root))
            ):
                return self._rooted(one, action, vector, root)
            case a.ExchangeMessages():
                return self._messages(one, action)
        raise ValueError(f"{action} cannot be played in virtual time; add it to {__name__}")

    def _sum(self, one: Replica, action: a.AllReduce) -> _Form:
        own = one.vectors[action.vector]
        if action.weight is not None:
            own = one.vectors[action.vector] = own * own.dtype.type(action.weight)
        members = range(one.replicas) if action.among is None else action.among
        factor = 1 if action.mean else len(members)

        def merge(found: Mapping[int, Vector]) -> Vector:
            whole = np.sum([*found.values()], axis=0) * (factor / len(found))
            return whole.astype(own.dtype)  # type: ignore[no-any-return]

        needed = len(members) - action.by.backup_workers
        return _Form(own, self._hosts.n_bytes, merge, _put(one, action.vector), members, needed)

    def _rooted(self, one: Replica, action: a.ReduceScatter | a.AllGather, vector: str, root: int) -> _Form:
        """All numbers go to one replica, which adds them up, or come from it."""
        members = range(one.replicas) if action.among is None else action.among
        rank, own = members[root], one.vectors.get(vector, one.vectors["parameters"])
        if isinstance(action, a.AllGather):
            take, only = _put(one, vector), frozenset({rank})
            return _Form(own, self._hosts.n_bytes, lambda found: found[rank], take, members, only)
        take = _put(one, vector) if one.rank == rank else _left
        return _Form(own, self._hosts.n_bytes, _total, take, members, len(members))

    def _messages(self, one: Replica, action: a.ExchangeMessages) -> _Form:
        encoder, gradient, ranks = one.encoder, one.vectors[action.vector], range(one.replicas)
        assert encoder is not None, action
        step, turn, gathers = action.step, action.turn, action.compress.rounds[action.turn] == "gather"
        items = action.compress.items(encoder.shapes, gradient.itemsize, step=step, turn=turn)
        own = np.zeros(items, gradient.dtype)
        encoder.encode(gradient, own, step=step, turn=turn, replicas=one.replicas)

        def take(messages: Vector) -> None:
            found = gradient.copy()
            encoder.decode(messages, found, step=step, turn=turn)
            one.vectors[action.vector] = found

        n_bytes = self._hosts.n_bytes * own.nbytes / gradient.nbytes * (len(ranks) if gathers else 1)
        merge = _stacked if gathers else lambda found: np.sum([*found.values()], axis=0)[None]
        return _Form(own, n_bytes, merge, take, ranks, len(ranks), 0.5 if gathers else 1.0)


def _stacked(found: Mapping[int, Vector]) -> Vector:
    return np.stack([*found.values()])


def _total(found: Mapping[int, Vector]) -> Vector:
    return np.sum([*found.values()], axis=0)  # type: ignore[no-any-return]


def _left(result: Vector) -> None:
    """Takes nothing."""


def _numbers(found: Vector) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(map(float, row)) for row in found)


def _put(one: Replica, vector: str) -> Callable[[Vector], None]:
    def put(result: Vector) -> None:
        one.vectors[vector] = result.copy()

    return put
