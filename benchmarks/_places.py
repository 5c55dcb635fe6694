"""Places where plans are played and predicted: hosts of this machine, or hosts joined by links of a given
rate.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from msgspec import structs

from benchmarks import _namespaces
from benchmarks._namespaces import GBIT, MBIT
from partita.engine import Optimizer, Session
from partita.engine.launch import ProcessLauncher
from partita.engine.profile import Calibration
from partita.engine.profile.bench import Bench
from partita.engine.profile.links import LinkMeasurement, measure_link
from partita.engine.protocol.names import part_name
from partita.partitioner import Cluster, Plan

MACHINES: Final = 2
"""Hosts of a simulated network."""


@dataclass(frozen=True)
class Place:
    """A place where plans are played.

    Args:
        name: shown in tables.
        bits_per_s: of the link of each host; None where they share memory.
    """

    name: str
    bits_per_s: float | None = None

    @contextmanager
    def opened(self) -> Iterator[Opened]:
        """Hosts can be put there until this ends. Raises RuntimeError where there can be no network."""
        if self.bits_per_s is None:
            yield Opened()
            return
        with _namespaces.network(MACHINES, bits_per_s=self.bits_per_s) as network:
            yield Opened(network)


HERE: Final = Place("here")
PLACES: Final = (
    Place("100 Mbit/s", 100 * MBIT),
    Place("1 Gbit/s", GBIT),
    Place("10 Gbit/s", 10 * GBIT),
)
"""Hosts of their own, with a link each."""


class Opened:
    """A place where hosts can be put."""

    def __init__(self, network: _namespaces.Network | None = None) -> None:
        """Without a network, hosts share this machine's memory."""
        self._network = network
        self._measured: LinkMeasurement | None = None

    def cluster(self, calibration: Calibration, machines: int) -> Cluster:
        """Cluster of this many machines; measures the links at the first call."""
        if self._network is None:
            return calibration.cluster(machines)
        if self._measured is None:
            runtime = calibration.record.runtime
            assert runtime is not None, "a calibration has measured the runtime"
            self._measured = measure_link(Bench(self._launcher), runtime, shared_memory=False)
        record = structs.replace(
            calibration.record, links={**calibration.record.links, "tcp": self._measured}
        )
        there = Calibration(record, calibration.cores, calibration.memory_bytes)
        return there.cluster(machines, shared_memory=False)

    def session(self, plan: Plan, seed: int, optimizer: Optimizer) -> Session:
        """A session of a plan there, that trains."""
        if self._network is None:
            return Session(plan, seed, train=True, optimizer=optimizer, hosts="processes")
        places = dict(enumerate(self._network.places))
        return Session(
            plan,
            seed,
            train=True,
            optimizer=optimizer,
            hosts="processes",
            listen=self._network.listen,
            places=places,
        )

    def _launcher(self, hosts: int, shared_memory: bool) -> ProcessLauncher:
        """Puts hosts into the network, whatever they would share here."""
        assert self._network is not None and hosts == len(self._network.places)
        there = {part_name(0, n): place for n, place in enumerate(self._network.places)}
        return ProcessLauncher(listen=self._network.listen, places=there)
