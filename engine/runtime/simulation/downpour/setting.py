"""What the hosts of a schedule share under Downpour: scenario, reference, disk, and who meets whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from partita.engine.protocol.downpour_client import DownpourClient
from partita.engine.protocol.downpour_coordinator import DownpourCoordinator
from partita.engine.protocol.messages import PushRecord
from partita.engine.protocol.parameter_shard import ParameterShard
from partita.engine.runtime.simulation.downpour.ledger import Ledger, Lineage
from partita.engine.runtime.simulation.downpour.scenario import Scenario
from partita.engine.runtime.simulation.hosts import Layout
from partita.engine.runtime.simulation.judgement import Life
from partita.engine.runtime.simulation.world import Process, World


@dataclass(frozen=True, slots=True)
class Machines:
    """Which machines are played: the real ones, or ones with a planted fault."""

    coordinator: type[DownpourCoordinator] = DownpourCoordinator
    shard: type[ParameterShard] = ParameterShard
    client: type[DownpourClient] = DownpourClient


class Noted:
    """What parts have noted of acknowledgements: it outlives them."""

    def __init__(self) -> None:
        self._noted: dict[Life, dict[str, PushRecord]] = {}

    def begin(self, part: Life) -> None:
        """A process has nothing, yet."""
        self._noted[part] = {}

    def note(self, part: str, shard: str, settled: PushRecord) -> None:
        """A process of this part notes it."""
        self._noted[part, settled.incarnation][shard] = settled

    def to(self, part: Life) -> dict[str, tuple[PushRecord, ...]]:
        """For each shard, what the processes before this one have noted."""
        found: dict[str, tuple[PushRecord, ...]] = {}
        for (name, incarnation), noted in sorted(self._noted.items()):
            if name == part[0] and incarnation < part[1]:
                for shard, settled in noted.items():
                    found[shard] = (*found.get(shard, ()), settled)
        return found

    def by(self, shard: str) -> dict[str, tuple[PushRecord, ...]]:
        """For each part, what its processes have noted of this shard."""
        found: dict[str, tuple[PushRecord, ...]] = {}
        for (name, incarnation), noted in sorted(self._noted.items()):
            settled = noted.get(shard, PushRecord(incarnation, 0))
            found[name] = (*found.get(name, ()), settled)
        return found


@dataclass(slots=True)
class File:
    """A shard's file on the simulated disk."""

    version: int
    seen: dict[str, Any]
    stops: dict[str, int]
    values: list[float]
    lineage: Lineage = field(repr=False)


class Setting(Protocol):
    """A schedule, as its hosts see it."""

    @property
    def world(self) -> World:
        """Time, and everybody."""
        ...

    scenario: Scenario
    machines: Machines
    ledger: Ledger
    layout: Layout
    disk: dict[str, File]
    noted: Noted

    def committed_file(self, shard: str, checkpoint: int) -> File:
        """What the manifest of this checkpoint says of this shard."""
        ...

    def meet(self, part: Process, *, replica: int, step: int) -> Sequence[Process]:
        """A part has done its step: everybody of its replica, if it is the last; nobody, if it is not."""
        ...

    def raises(self, name: str) -> bool:
        """Whether the user's function raises in this host, this time."""
        ...
