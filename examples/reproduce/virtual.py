"""Virtual time for drivers: their own programs are played, gradients are real, and only time is assumed.

The program `replica(me)` of any driver is interpreted action by action: with shards, the steps are shared and
pushes are applied on arrival; without, exchanges are barriers that take what their algorithm's alpha-beta
model says. A minibatch takes a drawn time, which is where stragglers come from. The network is the small one
of `two_functions`, and its parameters stand for `n_bytes` on the links.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count, islice
from math import exp
from typing import Any

import numpy as np

from examples.reproduce.two_functions import EXAMPLES, Problem
from partita.engine import Compensated, Optimizer
from partita.engine.drivers import Driver
from partita.engine.parameters import Updater, Vector
from partita.engine.parameters.optimizers import UpdateContext
from partita.engine.parameters.vectors import VectorStore
from partita.engine.protocol import actions as a
from partita.engine.protocol.commands import POINT
from partita.engine.protocol.events import Span
from partita.engine.protocol.exchange.algorithm import Link
from partita.engine.protocol.shard_effects import ApplyGradient, Compensate
from partita.engine.runtime.delay_compensation import DelayCompensation
from partita.engine.transport.payload import Payload


@dataclass(frozen=True)
class Hosts:
    """Machines whose times are assumed.

    Args:
        step_s: mean time of a minibatch.
        spread: standard deviation of the logarithm of that time, drawn anew for each minibatch.
        slow: factor of the times of each replica that is slower than the others.
        dead: for each replica that dies, when it does, and when it is back.
        n_bytes: that the parameters take on a link.
        link: between any two machines.
        one_server: whether all values and pushes go through the link of one machine, one after the other.
    """

    step_s: float = 0.1
    spread: float = 0.0
    slow: Mapping[int, float] = field(default_factory=dict)
    dead: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    n_bytes: int = 1_000_000
    link: Link = field(default=Link(0.5e-3, 8e-9))
    one_server: bool = False

    @property
    def pass_s(self) -> float:
        """Seconds that all parameters take to another machine."""
        return self.link.seconds(self.n_bytes)


@dataclass
class _Exchange:
    """One all-reduce: what has arrived, and who waits for the result."""

    found: dict[int, Vector] = field(default_factory=dict)
    result: Vector | None = None
    begun: bool = False
    waiting: list[Callable[[], None]] = field(default_factory=list)


class _Shard:
    """The parameters on shards, as one: pushes are applied on arrival."""

    def __init__(self, driver: Driver, start: Vector) -> None:
        self.store = VectorStore(start.copy())
        self.span = Span(POINT, 0, start.size)
        self.version, self.by = 0, dict[int, list[int]]()
        self._staleness = driver.staleness
        self._updater = Updater(driver.optimizer, self.store)
        settings = driver.staleness if isinstance(driver.staleness, Compensated) else Compensated(0.0)
        self._compensation = DelayCompensation(settings, self.store, ((0, start.size),))

    def fetch(self, rank: int) -> tuple[int, Vector]:
        """Returns the version and a copy of the values."""
        if isinstance(self._staleness, Compensated):
            self._compensation.fetched(f"part {rank}.0", self.version, self.span)
        return self.version, self.store.read(self.span).copy()

    def push(self, rank: int, base: int, gradient: Vector) -> None:
        """Applies a gradient of the parameters of a version."""
        own, part = self.by.setdefault(rank, []), f"part {rank}.0"
        tau = self.version - base - (len(own) - bisect_right(own, base))
        payload = Payload([memoryview(gradient.copy()).cast("B")])
        effect = ApplyGradient(
            self.span, payload, self.version, part, 0, len(own), self._staleness.scale(tau)
        )
        before = None
        if isinstance(self._staleness, Compensated):
            self._compensation.correct(Compensate(self.span, payload, part, base))
            before = self._compensation.before(effect)
        self._updater.apply(self.span, payload.numbers(gradient.dtype), self.version, effect.scale)
        self._compensation.after(effect, before)
        self.version += 1
        own.append(self.version)


class _Replica:
    """One replica at its driver's program. Its attributes are those that a program may ask for."""

    machine = 0
    is_last = is_complete = False

    def __init__(self, world: World, rank: int) -> None:
        self.world, self.rank, self.replica = world, rank, rank
        self.replicas = world.driver.replicas
        self.vectors: dict[str, Vector] = {"parameters": world.start.copy()}
        for name, kept in getattr(world.driver, "kept_vectors", {}).items():
            begins = world.start if kept.start == "parameters" else np.zeros_like(world.start)
            self.vectors[name] = begins.copy()
        self.states: dict[str, dict[str, Vector]] = {}
        self.updates: dict[str, int] = {}
        self.done, self.exchanges = 0, 0
        # With shards: the values installed and staged, the gradients under way and accumulated.
        self.base, self.fetching = -1, False
        self.staged: tuple[int, Vector, int] | None = None
        self.is_pushing = False
        self.last: Vector | None = None  # the gradient that was pushed last
        self.sum: tuple[int, Vector] | None = None
        self.ahead, self.pushes = 0, 0
        self.program = world.driver.replica(self)

    def steps(self) -> Iterator[int]:
        """Yields the numbers of its steps, without end."""
        return count()

    @property
    def step(self) -> int:
        """The number of its next step."""
        return self.done

    def rounds(self, every: int | None) -> Iterator[Iterator[int]]:
        """Yields the steps of one round after another, without end."""
        steps = count()
        while True:
            yield islice(steps, every)

    def update(
        self, optimizer: Optimizer, gradient: Vector, *, to: str = "parameters", keep: bool = True
    ) -> None:
        """Updates a vector by an optimizer, with a state of its own."""
        state = self.states.setdefault(to, dict(optimizer.state(gradient.size, gradient.dtype)))
        used = state if keep else {name: vector.copy() for name, vector in state.items()}
        updates = self.updates.get(to, 0)
        optimizer.bind(self.vectors[to], np.ascontiguousarray(gradient), used)(UpdateContext(updates))
        self.updates[to] = updates + keep


class World:
    """A run of a driver on hosts.

    Attributes:
        now: virtual seconds.
        n_bytes: sent so far.
    """

    def __init__(self, driver: Driver, problem: Problem, hosts: Hosts, *, seed: int = 0) -> None:
        self.driver, self.problem, self.hosts = driver, problem, hosts
        self.start = problem.start(seed)
        self.now, self.n_bytes, self.units = 0.0, 0.0, 0
        self._draw, self._order = np.random.default_rng([seed, 1]), np.random.default_rng([seed, 2])
        self._epochs: list[Any] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._exchanges: list[_Exchange] = []
        self._server_free_at = 0.0
        self._rooms: list[tuple[_Replica, int]] = []
        self.shard = _Shard(driver, self.start) if driver.shards else None
        self.replicas = [_Replica(self, rank) for rank in range(driver.replicas)]
        for replica in self.replicas:
            self._resume(replica)

    @property
    def point(self) -> Vector:
        """The parameters: of the shards, or the mean over replicas."""
        if self.shard is not None:
            return self.shard.store.read(self.shard.span).copy()
        return np.mean([one.vectors["parameters"] for one in self.replicas], axis=0, dtype=self.start.dtype)

    def play(self, until_s: float) -> None:
        """Plays all events up to a time."""
        while self._events and self._events[0][0] <= until_s:
            self.now, _, event = heapq.heappop(self._events)
            event()
        self.now = until_s

    def _after(self, seconds: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._numbers), event))

    def _resume(self, one: _Replica, value: Any = None) -> None:
        """Gives a program the result of its action, and carries out the next ones that take no time."""
        while (action := one.program.send(value)) is not None:
            if not self._begin(one, action):
                return
            value = None

    def _begin(self, one: _Replica, action: Any) -> bool:
        """Begins an action; returns whether it is done at once."""
        match action:
            case a.Compute():
                self._compute(one, action)
                return False
            case a.AllReduce():
                return self._exchange(one, action)
            case a.Dots(pairs=pairs, by=by):
                products = [float(one.vectors[x].astype(float) @ one.vectors[y]) for x, y in pairs]
                return self._exchange(one, a.AllReduce("dots", by=by), np.array(products))
            case a.Combine(into=into, terms=terms):
                one.vectors[into] = np.sum(
                    [np.float32(factor) * one.vectors[name] for name, factor in terms.items()], axis=0
                )
            case a.Apply(optimizer=optimizer, gradient=gradient, to=to, own=False):
                one.update(optimizer, one.vectors[gradient], to=to)
            case a.Room(ahead=ahead):
                self._rooms.append((one, ahead))
                self._look_for_room()
                return False
            case a.Pull():
                if not one.fetching:
                    self._pull(one)
            case a.Install():
                self._install(one)
            case a.Push():
                if not one.is_pushing and one.sum is not None:
                    self._push(one)
            case a.SafePoint() | a.Drain():
                pass
            case _:
                raise ValueError(f"{action} cannot be played in virtual time; add it to this file")
        return True

    # Minibatches.

    def _examples(self, unit: int) -> Any:
        """The pictures of a unit of work: each epoch has all of them, in an order of its own."""
        per_epoch = EXAMPLES // self.problem.batch
        epoch, within = divmod(unit, per_epoch)
        while len(self._epochs) <= epoch:
            self._epochs.append(self._order.permutation(EXAMPLES))
        return self._epochs[epoch][within * self.problem.batch : (within + 1) * self.problem.batch]

    def _seconds(self, one: _Replica) -> float:
        """Draws the time of a minibatch; one that a death falls into begins again afterwards."""
        hosts = self.hosts
        drawn = exp(hosts.spread * self._draw.normal() - hosts.spread**2 / 2)
        seconds = hosts.step_s * drawn * hosts.slow.get(one.rank, 1.0)
        gone, back = hosts.dead.get(one.rank, (0.0, 0.0))
        return back - self.now + seconds if gone <= self.now + seconds and self.now < back else seconds

    def _compute(self, one: _Replica, action: a.Compute) -> None:
        seconds = self._seconds(one)
        if self.shard is not None:
            unit, self.units = self.units, self.units + 1
        else:
            unit = action.step * len(self.replicas) + one.rank
            late = one.exchanges < len(self._exchanges) and self._exchanges[one.exchanges].begun
            seconds = 0.0 if late else seconds  # the others have gone on without its gradient
        found = self.problem.gradient(one.vectors["parameters"], self._examples(unit))

        def done() -> None:
            one.done += 1
            if self.shard is not None:
                self._accumulate(one, found)
                self._look_for_room()
            else:
                one.vectors["gradient"] = found if action.alone else found / len(self.replicas)
            self._resume(one)

        self._after(seconds, done)

    # Replicas that work together.

    def _exchange(self, one: _Replica, action: a.AllReduce, own: Vector | None = None) -> bool:
        """Joins an exchange; returns whether the replica has its result, or takes no part."""
        vector = one.vectors[action.vector] if own is None else own
        mine = vector if action.weight is None else vector * vector.dtype.type(action.weight)
        members = range(len(self.replicas)) if action.among is None else action.among
        if len(self._exchanges) == one.exchanges:
            self._exchanges.append(_Exchange())
        exchange, one.exchanges = self._exchanges[one.exchanges], one.exchanges + 1
        if one.rank not in members:
            one.vectors[action.vector] = mine
            return True

        def taken() -> None:
            assert exchange.result is not None
            if own is not None:
                self._resume(one, exchange.result)
                return
            one.vectors[action.vector] = exchange.result.copy()
            self._resume(one)

        exchange.waiting.append(taken)
        if exchange.result is not None:
            self._after(0.0, exchange.waiting.pop())
        elif not exchange.begun:
            exchange.found[one.rank] = mine
            if len(exchange.found) == len(members) - action.by.backup_workers:
                self._sum(exchange, action, len(members), products=own is not None)
        return False

    def _sum(self, exchange: _Exchange, action: a.AllReduce, members: int, *, products: bool) -> None:
        """Ends an exchange: all that wait get the result when its messages have arrived."""
        exchange.begun = True
        found = [exchange.found[rank] for rank in sorted(exchange.found)]
        labels = [f"machine {rank}" for rank in range(members)]
        n_bytes = found[0].nbytes if products else self.hosts.n_bytes
        segments = max(1, action.by.segments(labels))
        self.n_bytes += sum(
            action.by.sent(rank, labels, lambda segment: n_bytes // segments) for rank in range(members)
        )

        def arrived() -> None:
            whole = np.sum(found, axis=0) * (members / len(found))
            exchange.result = np.array(found) if products else whole.astype(self.start.dtype)
            exchange.result = exchange.result / members if action.mean else exchange.result
            waiting, exchange.waiting = exchange.waiting, []
            for one in waiting:
                one()

        self._after(action.by.seconds(labels, n_bytes, self.hosts.link), arrived)

    # Replicas with shards.

    def _accumulate(self, one: _Replica, gradient: Vector) -> None:
        one.update(self.driver.optimizer, gradient)
        base, before = one.sum or (one.base, 0.0)
        one.sum = base, before + gradient
        one.ahead += one.is_pushing

    def _pull(self, one: _Replica) -> None:
        """Fetches: the shard answers after one message, and the values take a pass."""
        one.fetching, shard = True, self.shard
        assert shard is not None

        def answered() -> None:
            version, values = shard.fetch(one.rank)
            held = len(shard.by.get(one.rank, ()))
            self.n_bytes += self.hosts.n_bytes

            def arrived() -> None:
                if held < one.pushes - 1:  # overtaken by the end of a push, the values lack it
                    self._pull(one)
                    return
                one.fetching, one.staged = False, (version, values, held)
                self._look_for_room()

            self._after(self._pass_s(), arrived)

        self._after(self.hosts.link.latency_s, answered)

    def _pass_s(self) -> float:
        """Returns the time until all parameters have passed the link of the shards."""
        pass_s = self.hosts.pass_s
        if not self.hosts.one_server:
            return pass_s
        self._server_free_at = max(self._server_free_at, self.now) + pass_s
        return self._server_free_at - self.now

    def _install(self, one: _Replica) -> None:
        """Takes what was fetched, with the replica's own gradients over it."""
        if one.staged is None:
            return
        one.base, one.vectors["parameters"], held = one.staged
        one.staged = None
        if held < one.pushes:
            assert one.last is not None
            one.update(self.driver.optimizer, one.last, keep=False)
        if one.sum is not None:
            one.update(self.driver.optimizer, one.sum[1], keep=False)

    def _push(self, one: _Replica) -> None:
        """Sends what has accumulated; it is acknowledged when it was applied."""
        if one.staged is not None and one.staged[2] < one.pushes:
            self._install(one)  # the values lack the gradient that this push replaces
        (base, gradient), one.sum = one.sum, None
        one.last, one.is_pushing, one.ahead, one.pushes = gradient, True, 0, one.pushes + 1
        self.n_bytes += self.hosts.n_bytes

        def arrived() -> None:
            assert self.shard is not None
            self.shard.push(one.rank, base, gradient)
            self._after(self.hosts.link.latency_s, acknowledged)

        def acknowledged() -> None:
            one.is_pushing = False
            self._look_for_room()

        self._after(self._pass_s(), arrived)

    def _look_for_room(self) -> None:
        """Lets replicas go on that have room now, and are not too far before the slowest one."""
        waiting, self._rooms = self._rooms, []
        slowest = min(one.done for one in self.replicas if not self._is_dead(one))
        for one, ahead in waiting:
            has_values = one.base >= 0 or one.staged is not None
            has_room = has_values and (not one.is_pushing or one.ahead < ahead)
            most = self.driver.staleness.most_ahead
            if has_room and (most is None or one.done <= slowest + most):
                self._after(0.0, lambda one=one: self._resume(one))
            else:
                self._rooms.append((one, ahead))

    def _is_dead(self, one: _Replica) -> bool:
        gone, back = self.hosts.dead.get(one.rank, (0.0, 0.0))
        return gone <= self.now < back
