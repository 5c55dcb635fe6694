"""The simulated clock of the race: processes, and messages whose transfer takes time.

A message with numbers occupies its sender's outgoing link and its receiver's incoming link, each first come,
first served, as in `partita.partitioner.predict.simulate`; one without takes the latency alone. A host of
several machines has a link for each of them, as far as slices of the vector distinguish them. No message is
lost, and no host dies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from partita.engine.parameters import Vector
from partita.engine.protocol import Message, encode
from partita.engine.testing.world import Process, World


@dataclass(frozen=True)
class Numbers:
    """A payload: a slice of the vector."""

    array: Vector
    slice: int

    @property
    def n_bytes(self) -> int:
        """Bytes as the protocol counts them: those of the small network."""
        return self.array.nbytes


@dataclass
class Way:
    """A link in one direction, which carries one message at a time."""

    bytes_per_s: float
    free: float = 0.0

    def taken(self, now: float, n_bytes: float) -> tuple[float, float]:
        """Start and end of the transfer of a message that is ready now."""
        begun = max(now, self.free)
        self.free = begun + n_bytes / self.bytes_per_s
        return begun, self.free


@dataclass
class Ways:
    """The links of a host, in both directions: `slices` of the vector share them out in order."""

    machines: float
    slices: int
    bytes_per_s: float
    out: list[Way] = field(init=False)
    into: list[Way] = field(init=False)

    def __post_init__(self) -> None:
        lanes = max(1, min(int(self.machines), self.slices))
        rate = self.bytes_per_s * self.machines / lanes
        self.out, self.into = ([Way(rate) for _ in range(lanes)] for _ in range(2))

    def lane(self, of_slice: int) -> int:
        """Index of the link that carries this slice."""
        return of_slice % self.slices * len(self.out) // self.slices


class Clock(World):
    """A world whose network is fair and has a bandwidth.

    Attributes:
        hosts: by name.
    """

    def __init__(self, seed: int, *, latency_s: float, bytes_of_a_number: float, now: float = 0.0) -> None:
        """Starts at `now`; one number of the small network counts as `bytes_of_a_number`."""
        super().__init__(seed)
        self.now = now
        self.hosts: dict[str, Host] = {}
        self._latency_s, self._bytes_of_a_number = latency_s, bytes_of_a_number

    def carry(self, source: Process, target: Process, message: Message, payload: object) -> None:
        """Sends a message over the links of both."""
        assert isinstance(source, Host) and isinstance(target, Host)
        delivery = (source.name, source.incarnation, encode(message), payload)
        if not isinstance(payload, Numbers):
            self.at(self.now + self._latency_s, target, target.on_message, delivery)
            return
        n_bytes = payload.array.size * self._bytes_of_a_number
        way = source.ways.out[source.ways.lane(payload.slice)]
        begun, _ = way.taken(self.now, n_bytes)
        self.at(begun + self._latency_s, target, target.on_arrival, (n_bytes, payload.slice, delivery))

    def every(self, wait_s: float, look: Callable[[], None]) -> None:
        """Calls `look` now and then every `wait_s` seconds."""

        def looks(_: object) -> None:
            look()
            self.at(self.now + wait_s, None, looks, None)

        looks(None)


class Host(Process):
    """A process with links, which handles one message after the other."""

    def __init__(self, clock: Clock, name: str, ways: Ways) -> None:
        super().__init__(clock, name, 1)
        self.clock_of_all, self.ways = clock, ways
        self._free = 0.0
        clock.hosts[name] = self

    def resolve(self, name: str) -> Process | None:
        """The host of this name."""
        return self.clock_of_all.hosts[name]

    def on_arrival(self, arrival: tuple[float, int, Any]) -> None:
        """Handles the arrival of a message's first byte at the receiver's link."""
        n_bytes, of_slice, delivery = arrival
        _, ended = self.ways.into[self.ways.lane(of_slice)].taken(self.world.now, n_bytes)
        self.world.at(ended, self, self.on_message, delivery)

    def occupied(self, seconds: float) -> float:
        """Time at which work of this length ends, queued behind earlier work."""
        self._free = max(self.world.now, self._free) + seconds
        return self._free
