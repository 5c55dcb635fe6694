"""The world of a driver: its replicas' programs are played, action by action, each when its time has come."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from typing import Any, Final

import numpy as np

from examples.reproduce.two_functions import EXAMPLES, Problem
from examples.reproduce.virtual.exchanges import Exchanges
from examples.reproduce.virtual.hosts import Hosts
from examples.reproduce.virtual.links import Links
from examples.reproduce.virtual.replica import Replica
from partita.engine.drivers import Driver
from partita.engine.parameters import Vector
from partita.engine.protocol import actions as a

APART: Final = 7919
"""The distance of the seeds from which groups draw their first parameters."""

_FORWARD: Final = 1 / 3
"""The part of a minibatch's time that its forward pass takes."""


class World:
    """A run of a driver on hosts.

    Attributes:
        now: virtual seconds.
        links: of the replicas to shards; None where there are none.
    """

    def __init__(self, driver: Driver, problem: Problem, hosts: Hosts, *, seed: int = 0) -> None:
        self.driver, self.problem, self.hosts, self.now = driver, problem, hosts, 0.0
        start, compress = problem.start(seed), driver.compress
        compress = compress.alone if compress is not None and driver.shards else compress
        self._draw, self._order = np.random.default_rng([seed, 1]), np.random.default_rng([seed, 2])
        self._epochs: list[Any] = []
        clients = driver.division
        self._division = None if clients is None else clients.divided(EXAMPLES, seed, problem.labels)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._exchanges = Exchanges(hosts, after=self._after, resume=self._resume)
        self.links: Links | None = None
        if driver.shards:
            self.links = Links(
                driver,
                start,
                hosts,
                batch=problem.batch,
                now=lambda: self.now,
                after=self._after,
                resume=self._resume,
            )
        ranks = range(driver.replicas)
        starts = [problem.start(seed + APART * group) for group in range(driver.groups)]
        self.replicas = [
            Replica(driver, rank, start=starts[rank % driver.groups], batch=problem.batch, seed=seed)
            for rank in ranks
        ]
        for replica in self.replicas:
            replica.encoder = (
                None if compress is None else compress.encoder([*problem.shapes.values()], start.dtype)
            )
            self._resume(replica)

    @property
    def n_bytes(self) -> float:
        """The bytes sent so far."""
        return self._exchanges.n_bytes + (0 if self.links is None else self.links.n_bytes)

    @property
    def n_messages(self) -> int:
        """The messages with numbers sent so far."""
        return self._exchanges.n_messages + (0 if self.links is None else self.links.n_messages)

    @property
    def done(self) -> list[int]:
        """The minibatches that each replica has done."""
        links = self.links
        return [one.step if links is None else links.done(one.rank) for one in self.replicas]

    @property
    def point(self) -> Vector:
        """The parameters of the shards; or the mean over replicas after the last step that all have done.

        All but the backup workers: nobody waits for those. Where there are groups, all of the first one.
        """
        if self.links is not None:
            return self.links.shard.point
        left_out = getattr(self.driver, "backup_workers", 0)
        replicas = self.replicas[:: self.driver.groups]
        done = sorted(max(one.states) for one in replicas)[left_out]
        for one in replicas:
            one.states = {step: point for step, point in one.states.items() if step >= done} or one.states
        found = [one.states[done] for one in replicas if done in one.states]
        return np.mean(found, axis=0, dtype=found[0].dtype)  # type: ignore[no-any-return]

    def play(self, until_s: float) -> None:
        """Plays all events up to a time."""
        while self._events and self._events[0][0] <= until_s:
            self.now, _, event = heapq.heappop(self._events)
            event()
        self.now = until_s

    def finish(self) -> None:
        """Plays what replicas exchange at the end of the work, as if all had done the same steps."""
        if self.links is not None:
            return
        self._events.clear()
        self._exchanges.clear()
        for one in self.replicas:
            one.complete()
        for one in self.replicas:
            self._resume(one)
        while self._events:
            self.play(self._events[0][0])

    def _after(self, seconds: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._numbers), event))

    def _resume(self, one: Replica, value: Any = None) -> None:
        """Gives a program the result of its action, and carries out the next ones that take no time."""
        while (action := self._next(one, value)) is not None:
            if not self._begin(one, action):
                return
            value = None

    def _next(self, one: Replica, value: Any) -> Any:
        try:
            return one.program.send(value)
        except StopIteration:
            return None

    def _begin(self, one: Replica, action: Any) -> bool:
        """Begins an action; returns whether it is done at once."""
        match action:
            case a.Compute():
                self._compute(one, action)
                return False
            case a.AllReduce() | a.ReduceScatter() | a.AllGather() | a.Dots() | a.ExchangeMessages():
                return self._exchanges.join(one, action)
            case a.Combine(into=into, terms=terms):
                one.combine(into, terms)
            case a.Apply(optimizer=optimizer, gradient=gradient, to=to, own=False):
                one.update(optimizer, one.vectors[gradient], to=to)
            case a.Keep():
                one.combine("start", {"parameters": 1.0})
            case a.Restore():
                one.combine("parameters", {"start": 1.0})
            case a.SafePoint():
                one.is_safe()
            case _ if self.links is not None:
                return self.links.begin(one, action)
            case _:
                raise ValueError(f"{action} cannot be played in virtual time; add it to {__name__}")
        return True

    # Minibatches.

    def examples(self, unit: int) -> Any:
        """The pictures of a unit of work: each epoch has all of them, in an order of its own."""
        per_epoch = EXAMPLES // self.problem.batch
        epoch, within = divmod(unit, per_epoch)
        epoch = epoch if self.driver.reshuffles else 0
        while len(self._epochs) <= epoch:
            self._epochs.append(self._order.permutation(EXAMPLES))
        return self._epochs[epoch][within * self.problem.batch : (within + 1) * self.problem.batch]

    def _examples_of(self, one: Replica, action: a.Compute) -> Any:
        if self.links is not None:
            return self.examples(self.links.next_unit(one.rank))
        if action.of is None:
            return self.examples(action.step * one.replicas + one.rank)
        assert self._division is not None, action
        of = action.of
        return self._division.at(action.step, of.client, of.visit, of.start, of.stop)

    def _compute(self, one: Replica, action: a.Compute) -> None:
        examples = self._examples_of(one, action)
        seconds = self.hosts.minibatch_s(one.rank, self._draw) * len(examples) / self.problem.batch
        seconds = self.hosts.ready_s(one.rank, self.now, seconds * (_FORWARD if action.teaches else 1.0))
        if self._exchanges.leaves_out(one):
            seconds = 0.0
        found = one.passed(self.problem, examples, teaches=action.teaches, distil=action.distil)

        def done() -> None:
            if found is None:
                pass  # a teacher's forward pass
            elif self.links is not None:
                self.links.computed(one, found)
            else:
                is_own = action.alone or action.of is not None
                one.vectors["gradient"] = found if is_own else found / found.dtype.type(one.replicas)
            self._resume(one)

        self._after(seconds, done)
