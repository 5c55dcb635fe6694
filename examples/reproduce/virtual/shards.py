"""Parameters on shards in virtual time, and a replica's links to them: pushes are applied on arrival."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from examples.reproduce.virtual.hosts import Hosts
from examples.reproduce.virtual.replica import Replica
from partita.engine import Compensated
from partita.engine.drivers import Driver
from partita.engine.parameters import Updater, Vector
from partita.engine.parameters.vectors import VectorStore
from partita.engine.protocol import actions as a
from partita.engine.protocol.commands import POINT
from partita.engine.protocol.events import Span
from partita.engine.protocol.shard_effects import ApplyGradient, Compensate
from partita.engine.runtime.delay_compensation import DelayCompensation
from partita.engine.transport.payload import Payload

After: TypeAlias = Callable[[float, Callable[[], None]], None]
Resume: TypeAlias = Callable[[Replica, Any], None]


class Shard:
    """The parameters on shards, as one.

    Attributes:
        ages: for each push, the updates of others since its values were fetched.
    """

    def __init__(self, driver: Driver, start: Vector) -> None:
        self.store = VectorStore(start.copy())
        self.span = Span(POINT, 0, start.size)
        self.version, self.by = 0, dict[int, list[int]]()
        self.ages: list[int] = []
        self._staleness = driver.staleness
        self._updater = Updater(driver.optimizer_of_shards, self.store)
        settings = driver.staleness if isinstance(driver.staleness, Compensated) else Compensated(0.0)
        self._compensation = DelayCompensation(settings, self.store, ((0, start.size),))

    @property
    def point(self) -> Vector:
        """A copy of the parameters."""
        return self.store.read(self.span).copy()

    def fetch(self, rank: int) -> tuple[int, Vector]:
        """Returns the version and a copy of the values."""
        if isinstance(self._staleness, Compensated):
            self._compensation.fetched(f"part {rank}.0", self.version, self.span)
        return self.version, self.point

    def push(self, rank: int, base: int, gradient: Vector) -> None:
        """Applies a gradient of the parameters of a version."""
        own, part = self.by.setdefault(rank, []), f"part {rank}.0"
        tau = self.version - base - (len(own) - bisect_right(own, base))
        payload = Payload([memoryview(gradient.copy()).cast("B")])
        self.ages.append(tau)
        scale = self._staleness.scale(tau)
        effect = ApplyGradient(self.span, payload, self.version, part, 0, len(own), scale)
        before = None
        if isinstance(self._staleness, Compensated):
            self._compensation.correct(Compensate(self.span, payload, part, base))
            before = self._compensation.before(effect)
        self._updater.apply(self.span, payload.numbers(gradient.dtype), self.version, effect.scale)
        self._compensation.after(effect, before)
        self.version += 1
        own.append(self.version)


@dataclass
class _Link:
    """Record of what one replica has fetched and pushed."""

    base: int = -1  # the version of the values that are installed
    fetching: bool = False
    staged: tuple[int, Vector, int] | None = None
    is_pushing: bool = False
    last: Vector | None = None  # the gradient that was pushed last
    sum: tuple[int, Any] | None = None
    centre: Vector | None = None  # towards which the next push moves, as it was installed since the last step
    ahead: int = 0
    pushes: int = 0
    done: int = 0


class Links:
    """The links of all replicas to the shards.

    Attributes:
        n_bytes, n_messages: sent so far.
        shard: the parameters.
        units: minibatches that replicas have taken so far.
    """

    def __init__(
        self,
        driver: Driver,
        start: Vector,
        hosts: Hosts,
        *,
        now: Callable[[], float],
        after: After,
        resume: Resume,
    ) -> None:
        self.n_bytes, self.n_messages, self.shard, self.units = 0.0, 0, Shard(driver, start), 0
        self._driver, self._hosts = driver, hosts
        self._now, self._after, self._resume = now, after, resume
        self._links = [_Link() for _ in range(driver.replicas)]
        self._rooms: list[tuple[Replica, a.Room]] = []
        self._server_free_at = 0.0

    def next_unit(self) -> int:
        """Takes the next minibatch: replicas share the steps."""
        self.units += 1
        return self.units - 1

    def begin(self, one: Replica, action: Any) -> bool:
        """Begins an action; returns whether it is done at once."""
        link = self._links[one.rank]
        match action:
            case a.Room():
                self._rooms.append((one, action))
                self._look_for_room()
                return False
            case a.Pull():
                if not link.fetching:
                    self._pull(one.rank)
            case a.Install():
                self._install(one)
            case a.Push():
                if not link.is_pushing and link.sum is not None:
                    self._push(one)
            case a.Drain():
                pass
            case _:
                raise ValueError(f"{action} cannot be played in virtual time; add it to {__name__}")
        return True

    def computed(self, one: Replica, gradient: Vector) -> None:
        """Applies a gradient to the replica's own parameters, and adds it to the next push."""
        link = self._links[one.rank]
        one.update(self._driver.optimizer, gradient)
        base, before = link.sum or (link.base, 0.0)
        link.sum = base, before + gradient
        link.centre = None
        link.ahead += link.is_pushing
        link.done += 1
        self._look_for_room()

    def done(self, rank: int) -> int:
        """Returns the steps that a replica has done."""
        return self._links[rank].done

    def _pull(self, rank: int) -> None:
        """Fetches: the shard answers after one message, and the values take a pass."""
        link = self._links[rank]
        link.fetching = True

        def answered() -> None:
            version, values = self.shard.fetch(rank)
            held = len(self.shard.by.get(rank, ()))
            self.n_bytes += self._hosts.n_bytes
            self.n_messages += 1

            def arrived() -> None:
                if held < link.pushes - 1:  # overtaken by the end of a push, the values lack it
                    self._pull(rank)
                    return
                link.fetching, link.staged = False, (version, values, held)
                self._look_for_room()

            self._after(self._pass_s(), arrived)

        self._after(self._hosts.link.latency_s, answered)

    def _pass_s(self, share: float = 1.0) -> float:
        """Returns the time until a share of all parameters has passed the link of the shards."""
        pass_s = self._hosts.link.seconds(share * self._hosts.n_bytes)
        if not self._hosts.one_server:
            return pass_s
        now = self._now()
        self._server_free_at = max(self._server_free_at, now) + pass_s
        return self._server_free_at - now

    def _install(self, one: Replica) -> None:
        """Takes what was fetched, with the replica's own gradients over it."""
        link = self._links[one.rank]
        if link.staged is None:
            return
        is_first = link.base < 0
        link.base, values, held = link.staged
        link.staged = None
        if self._driver.moves_by is not None:
            link.centre = values if held == link.pushes or link.last is None else values - link.last
            one.vectors["parameters"] = values.copy() if is_first else one.vectors["parameters"]
            return
        one.vectors["parameters"] = values
        if held < link.pushes:
            assert link.last is not None
            one.update(self._driver.optimizer, link.last, keep=False)
        if link.sum is not None:
            one.update(self._driver.optimizer, link.sum[1], keep=False)

    def _push(self, one: Replica) -> None:
        """Sends what has accumulated; it is acknowledged when it was applied."""
        link = self._links[one.rank]
        if link.staged is not None and link.staged[2] < link.pushes:
            self._install(one)  # the values lack the gradient that this push replaces
        assert link.sum is not None
        (base, gradient), link.sum = link.sum, None
        if self._driver.moves_by is not None:
            gradient = self._movement(one, link.centre)
        gradient, share = self._message(one, gradient, link.done)
        link.last, link.is_pushing, link.ahead, link.pushes = gradient, True, 0, link.pushes + 1
        self.n_bytes += share * self._hosts.n_bytes
        self.n_messages += 1

        def arrived() -> None:
            self.shard.push(one.rank, base, gradient)
            self._after(self._hosts.link.latency_s, acknowledged)

        def acknowledged() -> None:
            link.is_pushing = False
            self._look_for_room()

        self._after(self._pass_s(share), arrived)

    def _message(self, one: Replica, gradient: Vector, step: int) -> tuple[Vector, float]:
        """Returns what the message of a gradient means, and its size as a share of the gradient's."""
        compress, encoder = self._driver.compress, one.encoder
        if compress is None or encoder is None:
            return gradient, 1.0
        items = compress.alone.items(encoder.shapes, gradient.itemsize, step=step)
        message, found = np.zeros(items, gradient.dtype), np.empty_like(gradient)
        encoder.encode(gradient, message, step=step, turn=0, replicas=1)
        encoder.commit(step)
        encoder.decode(message[None], found, step=step, turn=0)
        return found, items / gradient.size

    def _movement(self, one: Replica, centre: Vector | None) -> Vector:
        """Moves a replica towards the centre; returns what the centre subtracts."""
        own, by = one.vectors["parameters"], self._driver.moves_by
        moved = np.zeros_like(own) if centre is None else own.dtype.type(by) * (centre - own)
        one.vectors["parameters"] = own + moved
        return moved  # type: ignore[no-any-return]

    def _look_for_room(self) -> None:
        """Lets replicas go on that have room now, and are not too far before the slowest one."""
        waiting, self._rooms = self._rooms, []
        now, most = self._now(), self._driver.staleness.most_ahead
        slowest = min(
            (one.done for rank, one in enumerate(self._links) if not self._hosts.is_dead(rank, now)),
            default=0,
        )
        for one, room in waiting:
            link = self._links[one.rank]
            has_values = (link.base >= 0 or link.staged is not None) and not (room.fetched and link.fetching)
            has_room = has_values and (not link.is_pushing or link.ahead < room.ahead)
            if has_room and (most is None or link.done <= slowest + most):
                self._after(0.0, lambda one=one: self._resume(one, None))  # type: ignore[misc]
            else:
                self._rooms.append((one, room))
