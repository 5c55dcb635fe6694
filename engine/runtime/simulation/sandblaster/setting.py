"""What the hosts of a schedule share under Sandblaster: scenario, reference, disk, and who meets whom."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from partita.engine.protocol.coordinator_effects import AbortRun, EndRun
from partita.engine.protocol.sandblaster_client import RunAssignment, SandblasterClient
from partita.engine.protocol.sandblaster_coordinator import SandblasterCoordinator
from partita.engine.protocol.vector_shard import VectorShard
from partita.engine.runtime.simulation.hosts import Host, Layout, Run
from partita.engine.runtime.simulation.judgement import Life
from partita.engine.runtime.simulation.sandblaster.disk import Disk, File
from partita.engine.runtime.simulation.sandblaster.ledger import Ledger, RunLedger
from partita.engine.runtime.simulation.sandblaster.scenario import Scenario
from partita.engine.runtime.simulation.scenario import Surroundings
from partita.engine.runtime.simulation.world import Process, World


@dataclass(frozen=True, slots=True)
class Machines:
    """Which machines are played: the real ones, or ones with a planted fault."""

    coordinator: type[SandblasterCoordinator] = SandblasterCoordinator
    shard: type[VectorShard] = VectorShard
    client: type[SandblasterClient] = SandblasterClient


class Setting(Protocol):
    """A schedule, as its hosts see it."""

    @property
    def world(self) -> World:
        """Time, and everybody."""
        ...

    around: Surroundings
    scenario: Scenario
    machines: Machines
    layout: Layout
    disk: Disk
    ledger: Ledger

    def launch(self, run: Run, life: Life, checkpoint: int | None) -> Host:
        """The process of a shard or a part."""
        ...

    def end(self, order: EndRun | AbortRun) -> None:
        """A coordinator has ended its run."""
        ...

    def ledger_of(self, run: Run) -> RunLedger:
        """What is known of a run."""
        ...

    def start_of(self, run: Run, shard: str, checkpoint: int | None) -> File:
        """What a shard holds in a committed checkpoint; None: in what the run began with."""
        ...

    def meet(self, part: Process, assignment: RunAssignment) -> None:
        """A part begins a turn; when all parts of its replica do, they compute it."""
        ...

    def raises(self, name: str) -> bool:
        """Whether the user's function raises in this host, this time."""
        ...
