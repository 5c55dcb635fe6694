"""Goodput in virtual time: the part of their time that replicas spend on steps that count, under kills.

A step counts if it is in the final parameters. A run plays the same work twice, in the real machines and with
all invariants checked: once in peace, and once while a part of a random replica is killed every so often, and
started again after a while. All steps of the first run count, and both have the same ones at the end; so the
goodput of the second one, useful replica-seconds over all, is the ratio of their times.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final

from typing_extensions import override

from partita.engine.drivers.driver import Driver
from partita.engine.protocol.coordinator_effects import Timeouts
from partita.engine.protocol.names import Topology
from partita.engine.testing.downpour.part import build_part as build_leased_part
from partita.engine.testing.downpour.schedule import DownpourSchedule
from partita.engine.testing.downpour.schedule import Scenario as LeasedScenario
from partita.engine.testing.downpour.shard import role as build_shard
from partita.engine.testing.program.part import build_part as build_joined_part
from partita.engine.testing.program.schedule import ProgramSchedule
from partita.engine.testing.program.schedule import Scenario as JoinedScenario
from partita.engine.testing.scenario import Environment
from partita.engine.testing.user import User
from partita.engine.transport.simulated import NetworkFaults

_LONG_S: Final = 1e5


@dataclass(frozen=True)
class Kills:
    """Deaths of replicas.

    Args:
        every_s: seconds of virtual time between two of them; 0: none.
        launch_s: seconds from a death until the next process of the part begins to be set up.
    """

    every_s: float = 60.0
    launch_s: float = 10.0


@dataclass(frozen=True)
class Goodput:
    """A run under kills, beside the same one in peace.

    Args:
        peace_s: virtual seconds of the run in which nothing is killed.
        seconds: of the other one.
        killed: how many processes were.
    """

    peace_s: float
    seconds: float
    killed: int

    @property
    def share(self) -> float:
        """Useful replica-seconds over all of them."""
        return self.peace_s / self.seconds


def goodput(
    driver: Driver, seed: int, *, steps: int, step_s: float = 0.5, kills: Kills | None = None
) -> Goodput:
    """Plays a run of so many steps of each replica, in peace and under kills.

    Args:
        driver: whose replicas work on their own, with shards that apply pushes, or together.
        seed: draws the times of steps and messages, and who is killed.
        steps: of each replica.
        step_s: the longest step, in virtual seconds.
        kills: how often, and for how long; None: once a minute, for ten seconds.

    Raises:
        AssertionError: an invariant is broken.
    """
    schedules = [
        _schedule(driver, seed, steps, step_s, one) for one in (Kills(every_s=0.0), kills or Kills())
    ]
    peace, other = ((one.play(seed), one.killer) for one in schedules)
    for outcome in (peace[0], other[0]):
        assert outcome.violation is None, outcome.violation
    return Goodput(peace[0].virtual_s, other[0].virtual_s, other[1].killed)


class _Killer:
    """Kills a part of a random replica every so often."""

    def __init__(self, schedule: Any, seed: int, kills: Kills) -> None:
        self.killed, self._kills = 0, kills
        self._schedule, self._random = schedule, Random(seed)

    def plan(self) -> None:
        """Kills the next one in a while."""
        if self._kills.every_s:
            world = self._schedule.world
            world.at(world.now + self._kills.every_s, None, self._kill, None)

    def _kill(self, _: object) -> None:
        schedule = self._schedule
        topology = schedule.environment.topology
        parts = topology.parts(self._random.randrange(topology.replicas))
        for process in schedule.world.living(self._random.choice(parts)):
            self.killed += 1
            schedule.world.note(process, "is killed", None)
            process.exit()
        self.plan()

    def launch_after_s(self, incarnation: int) -> float:
        """Returns the seconds until a process is there."""
        return self._kills.launch_s if incarnation else 0.1


def _calm(topology: Topology) -> Environment:
    return Environment(
        topology=topology,
        write_s=0.5,
        disk_fails=0.0,
        checkpoint_every_s=30.0,
        network=NetworkFaults(delay_s=0.002),
        chaos_s=_LONG_S,
        faults=0,
        can_kill=True,
        sees_exits=True,
        stall_s=1e6,
        raising=None,
        stop_at=None,
    )


def _schedule(driver: Driver, seed: int, steps: int, step_s: float, kills: Kills) -> Any:
    topology = Topology(driver.replicas, 1, driver.shards)
    environment = _calm(topology)
    if driver.shards:
        leased = LeasedScenario(
            environment=environment,
            driver=driver,
            steps=steps,
            done=(0,) * driver.replicas,
            step_s=step_s,
            straggler=1.0,
            apply_s=0.0,
        )
        return _Leased(driver, seed, kills, leased, part=build_leased_part, shard=build_shard)
    joined = JoinedScenario(
        environment=environment,
        own=(3,),
        shared=0,
        examples=steps * driver.replicas,
        batch=1,
        epochs=1,
        computers=0,
        step_s=step_s,
        straggler=1.0,
    )
    return _Joined(driver, seed, kills, joined, part=build_joined_part)


class _Leased(DownpourSchedule):
    def __init__(self, driver: Driver, seed: int, kills: Kills, scenario: Any, **builds: Any) -> None:
        self._given, self.killer = scenario, _Killer(self, seed, kills)
        super().__init__(driver, seed, (), **builds)
        self.launch_after_s = self.killer.launch_after_s  # type: ignore[method-assign]

    @override
    def draw_scenario(self, random: Random, driver: Driver | None) -> LeasedScenario:
        return self._given  # type: ignore[no-any-return]

    @override
    def draw_user(self, seed: int) -> User:
        return User()

    @override
    def timeouts(self) -> Timeouts:
        return replace(super().timeouts(), deaths=10**6)

    @override
    def _plan(self) -> None:
        self._crashes = ()
        super()._plan()
        self.killer.plan()


class _Joined(ProgramSchedule):
    def __init__(self, driver: Driver, seed: int, kills: Kills, scenario: Any, **builds: Any) -> None:
        self._given, self.killer = scenario, _Killer(self, seed, kills)
        super().__init__(driver, seed, (), **builds)
        self.launch_after_s = self.killer.launch_after_s  # type: ignore[method-assign]

    @override
    def draw_scenario(self, random: Random, replicas: int | None) -> JoinedScenario:
        return self._given  # type: ignore[no-any-return]

    @override
    def draw_user(self, seed: int, steps: int) -> User:
        return User()

    @override
    def timeouts(self) -> Timeouts:
        """A replica of an elastic run leaves at once; any other one is started again."""
        return replace(super().timeouts(), deaths=10**6 if self.least is None else 1)

    @override
    def _plan(self) -> None:
        self._crashes_most = False
        super()._plan()
        self.killer.plan()
