"""A replica's links to the shards in virtual time: what it fetches, installs and pushes, of each fragment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np

from examples.reproduce.virtual.hosts import Hosts
from examples.reproduce.virtual.replica import Replica
from examples.reproduce.virtual.server_link import ServerLink
from examples.reproduce.virtual.shards import AnyShard, MergingShard, Shard, spans_of
from partita.engine.drivers import Driver
from partita.engine.parameters import Vector
from partita.engine.protocol import actions as a

After: TypeAlias = Callable[[float, Callable[[], None]], None]
Resume: TypeAlias = Callable[[Replica, Any], None]

_TICK_S: Final = 0.1
"""Seconds between two looks at what waits on shards, as hosts have them."""


@dataclass
class _Link:
    """Record of what one replica has fetched and pushed of one fragment."""

    rank: int
    number: int
    span: slice
    base: int = -1  # the version of the values that are installed
    fetching: bool = False
    staged: tuple[int, Vector, int] | None = None
    is_pushing: bool = False
    is_wanted: bool = False  # values are to be fetched as soon as the push is acknowledged
    last: Vector | None = None  # what was pushed last
    sum: tuple[int, Any] | None = None  # the base, and the gradients since the last push
    since: Vector | None = None  # the parameters at the last push, where changes are pushed
    centre: Vector | None = None  # towards which the next push moves, as it was installed since the last step
    units: list[int] = field(default_factory=list)  # since the last push
    ahead: int = 0
    pushes: int = 0


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
        batch: int,
        now: Callable[[], float],
        after: After,
        resume: Resume,
    ) -> None:
        if driver.compress is not None and driver.n_fragments > 1:
            raise ValueError(f"{driver} compresses fragments, which is not played in virtual time")
        self.n_bytes, self.n_messages, self.units = 0.0, 0, 0
        self.shard: AnyShard = (
            Shard(driver, start)
            if driver.merging is None
            else MergingShard(driver, start, driver.merging, batch=batch)
        )
        self._driver, self._hosts, self._size = driver, hosts, start.size
        self._now, self._after, self._resume = now, after, resume
        spans = spans_of(start.size, driver.n_fragments)
        self._links = [
            [_Link(rank, n, span) for n, span in enumerate(spans)] for rank in range(driver.replicas)
        ]
        self._done = [0] * driver.replicas
        self._taken = [-1] * driver.replicas  # the unit that each replica computes
        self._rooms: list[tuple[Replica, a.Room]] = []
        chunk_bytes = hosts.server_chunk_bytes
        self._server = (
            None if chunk_bytes is None else ServerLink(hosts.link, chunk_bytes, now=now, after=after)
        )
        self._ticks = False

    def next_unit(self, rank: int) -> int:
        """Takes the next minibatch: replicas share the steps."""
        self.units += 1
        self._taken[rank] = self.units - 1
        return self.units - 1

    def begin(self, one: Replica, action: Any) -> bool:
        """Begins an action; returns whether it is done at once."""
        match action:
            case a.Room():
                self._rooms.append((one, action))
                self._look_for_room()
                return False
            case a.Pull(fragment=fragment, after_push=after_push):
                for link in self._chosen(one.rank, fragment):
                    if after_push and link.is_pushing:
                        link.is_wanted = True
                    elif not link.fetching:
                        self._pull(link)
            case a.Install():
                for link in self._links[one.rank]:
                    self._install(one, link)
            case a.Push(fragment=fragment):
                for link in self._chosen(one.rank, fragment):
                    if not link.is_pushing and link.sum is not None:
                        self._push(one, link)
            case a.Drain():
                pass
            case _:
                raise ValueError(f"{action} cannot be played in virtual time; add it to {__name__}")
        return True

    def _chosen(self, rank: int, fragment: int | None) -> Iterator[_Link]:
        return (link for link in self._links[rank] if fragment in (None, link.number))

    def computed(self, one: Replica, gradient: Vector) -> None:
        """Applies a gradient to the replica's own parameters, and adds it to the next push."""
        one.update(self._driver.optimizer, gradient)
        for link in self._links[one.rank]:
            base, before = link.sum or (link.base, 0.0)
            link.sum = base, before + gradient[link.span]
            link.centre = None
            link.ahead += link.is_pushing
            link.units.append(self._taken[one.rank])
        self._done[one.rank] += 1
        self._look_for_room()

    def done(self, rank: int) -> int:
        """Returns the steps that a replica has done."""
        return self._done[rank]

    def _share(self, link: _Link) -> float:
        """The share of all parameters that a link has."""
        return (link.span.stop - link.span.start) / self._size

    def _pull(self, link: _Link) -> None:
        """Fetches: the shard answers after one message, and the values take a pass."""
        link.fetching, share = True, self._share(link)

        def answered() -> None:
            version, values, held, applied = self.shard.fetch((link.rank, link.number), self._now())
            self._settle(applied)
            self.n_bytes += share * self._hosts.n_bytes
            self.n_messages += 1

            def arrived() -> None:
                if held < link.pushes - 1:  # overtaken by the end of a push, the values lack it
                    self._pull(link)
                    return
                link.fetching, link.staged = False, (version, values, held)
                self._look_for_room()

            self._pass(share * self._hosts.n_bytes, arrived)

        self._after(self._hosts.link.latency_s, answered)

    def _pass(self, n_bytes: float, arrived: Callable[[], None]) -> None:
        """Sends values or a push, which pass the link of the shards."""
        if self._server is None:
            self._after(self._hosts.link.seconds(n_bytes), arrived)
        else:
            self._server.send(n_bytes, arrived)

    def _install(self, one: Replica, link: _Link) -> None:
        """Takes what was fetched, with the replica's own gradients or changes over it."""
        if link.staged is None:
            return
        is_first = link.base < 0
        link.base, values, held = link.staged
        link.staged = None
        if self._driver.moves_by is not None:
            link.centre = values if held == link.pushes or link.last is None else values - link.last
            one.vectors["parameters"] = values.copy() if is_first else one.vectors["parameters"]
            return
        if self._driver.pushes_changes:
            self._install_changes(one, link, values, held)
            return
        one.vectors["parameters"] = values
        if held < link.pushes:
            assert link.last is not None
            one.update(self._driver.optimizer, link.last, keep=False)
        if link.sum is not None:
            one.update(self._driver.optimizer, link.sum[1], keep=False)

    @staticmethod
    def _install_changes(one: Replica, link: _Link, values: Vector, held: int) -> None:
        """Makes the changes that new values of a fragment lack over them again."""
        own = one.vectors["parameters"][link.span]
        changes = 0.0 if link.since is None or link.sum is None else link.since - own
        if held < link.pushes:
            assert link.last is not None
            values = values - link.last
        link.since = values.copy()
        own[:] = values - changes

    def _push(self, one: Replica, link: _Link) -> None:
        """Sends what has accumulated; it is acknowledged when it was applied."""
        if link.staged is not None and link.staged[2] < link.pushes:
            self._install(one, link)  # the values lack the gradient that this push replaces
        assert link.sum is not None
        (base, pushed), link.sum = link.sum, None
        if self._driver.moves_by is not None:
            pushed = self._movement(one, link.centre)
        elif self._driver.pushes_changes:
            assert link.since is not None, link
            pushed, link.since = _changed(link.since, one.vectors["parameters"][link.span])
        pushed, share = self._message(one, pushed)
        share *= self._share(link)
        link.last, link.is_pushing, link.ahead, link.pushes = pushed, True, 0, link.pushes + 1
        units, link.units = tuple(link.units), []
        self.n_bytes += share * self._hosts.n_bytes
        self.n_messages += 1

        def arrived() -> None:
            self._settle(self.shard.push((link.rank, link.number), base, pushed, units, self._now()))
            self._tick()

        self._pass(share * self._hosts.n_bytes, arrived)

    def _settle(self, streams: list[tuple[int, int]]) -> None:
        """Acknowledges pushes that have been applied."""
        for rank, number in streams:
            link = self._links[rank][number]
            self._after(self._hosts.link.latency_s, lambda link=link: self._acknowledged(link))  # type: ignore[misc]

    def _acknowledged(self, link: _Link) -> None:
        link.is_pushing = False
        if link.is_wanted and not link.fetching:
            self._pull(link)
        link.is_wanted = False
        self._look_for_room()

    def _tick(self) -> None:
        """Lets a shard look at what waits there, again and again while anything does."""
        if self._ticks:
            return

        def ticked() -> None:
            self._ticks = False
            found = self.shard.tick(self._now())
            if found is not None:
                self._settle(found)
                self._tick()

        if self._driver.merging is not None:
            self._ticks = True
            self._after(_TICK_S, ticked)

    def _message(self, one: Replica, gradient: Vector) -> tuple[Vector, float]:
        """Returns what the message of a push means, and its size as a share of the whole."""
        compress, encoder, step = self._driver.compress, one.encoder, self._done[one.rank]
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
        alive = (done for rank, done in enumerate(self._done) if not self._hosts.is_dead(rank, now))
        slowest = min(alive, default=0)
        for one, room in waiting:
            has_room = all(self._has_room(link, room) for link in self._links[one.rank])
            if has_room and (most is None or self._done[one.rank] <= slowest + most):
                self._after(0.0, lambda one=one: self._resume(one, None))  # type: ignore[misc]
            else:
                self._rooms.append((one, room))

    @staticmethod
    def _has_room(link: _Link, room: a.Room) -> bool:
        has_values = (link.base >= 0 or link.staged is not None) and not (room.fetched and link.fetching)
        return has_values and (not link.is_pushing or link.ahead < room.ahead)


def _changed(since: Vector, now: Vector) -> tuple[Vector, Vector]:
    """Returns what has changed, as shards subtract it, and from where on the next changes are counted."""
    return since - now, now.copy()
