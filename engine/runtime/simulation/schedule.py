"""One schedule: a seed's scenario played with real machines, and judged after every event.

It ends when the run does, or when it should have. What is played and how it is judged is a driver's to say.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final

from partita.engine.protocol.coordinator_effects import AbortRun, EndRun, Opened, StopRequested
from partita.engine.runtime.simulation import accidents
from partita.engine.runtime.simulation.coordinator import CoordinatorHost
from partita.engine.runtime.simulation.hosts import Host
from partita.engine.runtime.simulation.judgement import Outcome, Violation, demand
from partita.engine.runtime.simulation.scenario import Surroundings
from partita.engine.runtime.simulation.world import Process, World
from partita.engine.transport.simulated import SimulatedNetwork

CONVERGENCE_S: Final = 120.0
"""Within this long after everything has healed a run must end (I8)."""


class Schedule(ABC):
    """The setting of one seed.

    Attributes:
        world: its time and processes.
        coordinator: the process of the newest one.
        ending: how its run ended.
        mended: whether the user's function raises no more.
    """

    coordinator: CoordinatorHost
    kinds: Sequence[str] = accidents.KINDS

    def __init__(self, seed: int, *, keep_all: bool) -> None:
        self.world: Final = World(seed, keep_all=keep_all)
        self.ending: EndRun | AbortRun | None = None
        self._keep_all = keep_all
        self._seed = seed

    def surround(self, around: Surroundings) -> None:
        """Sets up what every schedule has, once it is drawn."""
        self.around = around
        self._raises_left = around.raising[1] if around.raising else 0
        self._raised_at = 0.0
        self.mended = False
        self.world.network = SimulatedNetwork(self.world.random, around.network)
        self.world.when_exited = self.exited

    def play(self) -> Outcome:
        """From the first event to the last, or to the first violation."""
        world = self.world
        self._plan()
        violation = None
        try:
            if not world.run(until=self.around.chaos_s + CONVERGENCE_S):
                waits = self.coordinator.machine.waits_for
                demand(False, "I8", f"no end within {CONVERGENCE_S:g} s after the chaos; waits for {waits}")
            if isinstance(self.ending, AbortRun):
                self.judge_failure(self.ending)
            else:
                assert self.ending is not None
                self._judge_raising()
                self.judge(self.ending)
        except Violation as error:
            violation = str(error)
        except (AssertionError, LookupError, ValueError) as error:  # a machine's own, or of what it asks for
            violation = f"validate: {type(error).__name__} {error}"
        told = violation is not None or self._keep_all
        story = tuple(world.story()) if told else ()
        return Outcome(self._seed, violation, type(self.ending).__name__, world.events, world.now, story)

    def _plan(self) -> None:
        world, around, coordinator = self.world, self.around, self.coordinator
        world.at(0.0, coordinator, coordinator.on_event, Opened())
        world.at(0.0, coordinator, coordinator.on_tick, None)
        for _ in range(around.accidents):
            world.at(world.random.uniform(0.0, around.chaos_s), None, self._accident, None)
        world.at(around.chaos_s, None, self._heal, None)
        if around.stop_at is not None:
            world.at(around.stop_at, None, self._stop, None)

    def _accident(self, _: object) -> None:
        accidents.happen(self.world, self.kinds)

    def _heal(self, _: object) -> None:
        accidents.heal(self.world)

    def _stop(self, _: object) -> None:
        self.coordinator.later(0.0, self.coordinator.on_event, StopRequested())

    def exited(self, process: Process) -> None:
        """A process has ended; a host's coordinator may see it."""
        if isinstance(process, Host) and process.run.coordinator is self.coordinator:
            self.coordinator.host_exited(process)

    def raises(self, name: str) -> bool:
        """Whether the user's function raises in this host, this time."""
        raising = self.around.raising
        if self.mended or not self._raises_left or raising is None or name != raising[0]:
            return False
        self._raises_left -= 1
        self._raised_at = self.world.now
        return True

    def end(self, order: EndRun | AbortRun) -> None:
        """The run is over."""
        self.world.note(self.coordinator, type(order).__name__, order)
        self.ending, self.world.over = order, True

    @property
    def stopped(self) -> bool:
        """Whether the user has pressed Ctrl-C."""
        return self.around.stop_at is not None and self.world.now >= self.around.stop_at

    def judge_failure(self, ending: AbortRun) -> None:
        """A run fails for nothing but what a user's function raises, and says what that is (I13)."""
        raising = self.around.raising
        told = raising is not None and raising[1] >= 3 and ending.traceback.endswith(raising[0])
        demand(told and not self.mended, "I8", "the run failed:", ending.reason)

    def _judge_raising(self) -> None:
        around = self.around
        network = around.network
        quiet = not (around.accidents or network.drop) and around.stop_at is None
        told = self.world.now > self._raised_at + (network.slow_s if network.slow else network.delay_s)
        raised = around.raising is not None and around.raising[1] >= 3 and self._raises_left == 0 and told
        demand(self.mended or not (quiet and raised), "I13", around.raising, "raised, and the run went on")

    @abstractmethod
    def judge(self, ending: EndRun) -> None:
        """What must hold at the end of a run that did not fail."""
