"""All drivers in the simulator: the real machines hold every invariant, and planted faults are caught."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, ClassVar

import pytest

from partita.engine import LBFGS, Objective
from partita.engine.drivers import EASGD, AllReduce, Downpour, Driver, Sandblaster
from partita.engine.parameters.compression import Int8
from partita.engine.protocol import Topology
from partita.engine.protocol.actions import AllReduce as AllReduceOf
from partita.engine.protocol.actions import (
    Apply,
    Compute,
    Drain,
    Install,
    Program,
    Pull,
    Push,
    Room,
    SafePoint,
)
from partita.engine.protocol.checkpoint_messages import Unsent
from partita.engine.protocol.commands import Portions
from partita.engine.protocol.events import Send
from partita.engine.protocol.exchange import Hierarchical, Ring, Server, Tree
from partita.engine.protocol.leased_work import HasSteps
from partita.engine.protocol.parameter_links import UNSENT, ParameterLinks
from partita.engine.protocol.views import Member
from partita.engine.testing import Fault, play
from partita.engine.testing.__main__ import PLAYERS
from partita.engine.testing.program.drawn import draw
from partita.engine.testing.sandblaster import play_sandblaster
from partita.engine.testing.sandblaster.scenario import Scenario
from partita.engine.testing.scenario import Environment
from partita.engine.transport.simulated import NetworkFaults
from tests.simulation import (
    planted_backup,
    planted_commands,
    planted_disk,
    planted_downpour,
    planted_hostile,
    planted_log,
    planted_program,
    planted_sandblaster,
    planted_stops,
)
from tests.simulation.outcomes import Planted, PlantedFaults, all_hold, is_caught, report_of

FEW = pytest.param(range(28), id="few")
MANY = pytest.param(range(28, 500), id="many", marks=pytest.mark.slow)

SCHEDULES = {
    "downpour": 80,
    "downpour_log": 80,
    "downpour_replicated": 56,
    "sandblaster": 48,
    "sandblaster_log": 24,
    "sandblaster_replicated": 24,
    "all_reduce": 56,
}


@pytest.mark.parametrize("half", [0, 1])
@pytest.mark.parametrize("driver", SCHEDULES)
def test_every_invariant_holds_in_every_schedule(driver: str, half: int) -> None:
    n = SCHEDULES[driver] // 2
    all_hold(PLAYERS[driver], range(half * n, half * n + n))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("driver", SCHEDULES)
def test_every_invariant_holds_in_very_many_schedules(driver: str) -> None:
    all_hold(PLAYERS[driver], range(SCHEDULES[driver], 20_000))


@pytest.mark.parametrize("by", [Ring(), Tree(), Hierarchical(), Server()], ids=lambda by: type(by).__name__)
@pytest.mark.parametrize("seeds", [FEW, MANY])
def test_every_algorithm_holds_every_invariant(by: object, seeds: range) -> None:
    all_hold(lambda seed: play(AllReduce(replicas=1 + seed % 4, by=by), seed), seeds)


@pytest.mark.parametrize("seed", [12_169, 15_224, 21_179, 23_955, 24_297])
def test_seeds_that_broke_an_invariant_hold(seed: int) -> None:
    """A run that lost its work after Ctrl-C called itself complete; a view cut a sharded step. The second
    and the last two were the model's: parts of a replica that had left went on; a sum of one left that out.
    """
    all_hold(lambda seed: play(draw(Random(seed)), seed), [seed])


@pytest.mark.parametrize(
    ("driver", "seed"),
    [
        ("downpour_replicated", 702_509),
        ("downpour_log", 702_435),
        ("downpour_log", 703_833),
        ("sandblaster", 700_974),
        ("sandblaster", 767),
        ("all_reduce", 703_020),
    ],
)
def test_seeds_of_other_drivers_that_broke_an_invariant_hold(driver: str, seed: int) -> None:
    """Nobody told a replica that another one had taken the rest of the work; a validation waited for a
    shard that never answered, and nobody reported it. The others were the model's: an old run was compared
    with the files of the next one, or began from one that was damaged meanwhile; parts whose work was done
    had ended.
    """
    all_hold(PLAYERS[driver], [seed])


# Hostile members.


@pytest.mark.parametrize("driver", SCHEDULES)
def test_hostile_members_break_no_promise_of_others(driver: str) -> None:
    all_hold(partial(PLAYERS[driver], hostile=True), range(8))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("driver", SCHEDULES)
def test_hostile_members_break_no_promise_of_others_in_many_schedules(driver: str) -> None:
    all_hold(partial(PLAYERS[driver], hostile=True), range(8, 3_000))


@pytest.mark.parametrize(("driver", "seed"), [("downpour_log", 345), ("downpour_replicated", 522)])
def test_seeds_with_hostile_members_that_broke_an_invariant_hold(driver: str, seed: int) -> None:
    """A host was cut off, and the one report of it was lost. A shard that had begun from its backup was
    started again beside itself, because the coordinator took nothing more of that backup.
    """
    all_hold(partial(PLAYERS[driver], hostile=True), [seed])


@pytest.mark.parametrize(
    "planted", planted_hostile.FAULTS, ids=lambda planted: planted.name.replace(" ", "-")
)
def test_it_bites_with_hostile_members(planted: PlantedFaults) -> None:
    with ExitStack() as stack:
        for fault in planted.faults:
            stack.enter_context(fault.planted())
        is_caught(planted, partial(PLAYERS[planted.driver], hostile=True))


def test_a_replica_without_a_part_is_leased_nothing() -> None:
    """The part had died when its work was done; then another replica left, and gave back what it had not."""
    all_hold(PLAYERS["downpour"], [40_768])


def test_a_replica_that_leaves_before_the_first_directory_costs_nobody_an_address() -> None:
    """Its leaving counted as a directory, so those that had come before it were never published."""
    all_hold(PLAYERS["sandblaster"], [3_287])


def test_a_file_that_does_not_know_of_a_loss_is_written_again() -> None:
    """A part had the acknowledgement after a shard had begun anew and written its file."""
    all_hold(PLAYERS["downpour"], [11_616])


# Drivers of a user.


@dataclass(frozen=True)
class LocalSGD(Driver):
    """Replicas that compute some steps alone, as in `docs/drivers.md`."""

    replicas: int = 3

    def replica(self, me: Member) -> Program:
        for step in me.steps():
            yield Compute(step, alone=True)
            yield Apply(None)
            yield SafePoint()
            if step % 3 == 2 or me.is_last:
                yield AllReduceOf("parameters", by=Ring(), mean=True)
                yield SafePoint()


@dataclass(frozen=True)
class Eager(Downpour):
    """Replicas that push more often at the start, and install what has come before each step."""

    replicas: int = 2
    shards: int = 2

    def replica(self, me: HasSteps) -> Program:
        yield Pull()
        for step in me.steps():
            yield Room(2)
            yield Install()
            yield Compute(step)
            yield Pull()
            if step < 3 or step % 4 == 3:
                yield Push()
        yield Drain()


METHOD = Sandblaster(LBFGS(max_iterations=2), replicas=2, shards=2, portion=1, batch=4)


@pytest.mark.parametrize(
    "driver",
    [
        LocalSGD(),
        *(
            pytest.param(one, marks=pytest.mark.slow)
            for one in (Eager(), METHOD, EASGD(replicas=2, shards=2, every=2))
        ),
        Downpour(elastic=(1, 2)),
    ],
    ids=lambda d: type(d).__name__,
)
@pytest.mark.parametrize("seeds", [FEW, MANY])
def test_a_driver_of_ones_own_is_played(driver: Driver, seeds: range) -> None:
    all_hold(lambda seed: play(driver, seed), seeds)


class Twice(Eager):
    """Each second step is computed again."""

    def replica(self, me: HasSteps) -> Program:
        for action in super().replica(me):
            yield action
            if isinstance(action, Compute) and action.step % 2:
                yield action


class Without(Eager):
    """Leaves out the actions of one kind."""

    kind: ClassVar[type] = Compute

    def replica(self, me: HasSteps) -> Program:
        return (action for action in super().replica(me) if not isinstance(action, self.kind))


class WithoutInstalling(Without):
    kind = Install


@pytest.mark.parametrize(
    ("driver", "reported"),
    [
        (Twice(), "compute each step of me.steps() once"),
        (Without(), "has not computed step 0"),
        (WithoutInstalling(), "without parameters of every shard"),
    ],
)
def test_a_mistake_in_a_driver_with_shards_is_caught(driver: Eager, reported: str) -> None:
    caught = next(outcome for outcome in (play(driver, seed) for seed in range(20)) if outcome.violation)
    assert caught.violation is not None and reported in caught.violation


# Planted faults.


def test_a_file_with_what_a_later_push_lacked_is_found() -> None:
    def last(method: Any, links: Any, link: Any, message: Any) -> Any:
        known = message.checkpoint, message.incarnation, message.pushes, message.fragment
        return iter((Send(link.shard, Unsent(*known), link.span(UNSENT)),))

    driver = Downpour(replicas=3, shards=2, compress=Int8())
    with Fault(ParameterLinks, "_asked", last).planted():
        found = (play(driver, seed).violation for seed in range(20))
        assert next(one for one in found if one is not None).startswith("C2")


@pytest.mark.parametrize("replicas", [1, 3])
def test_compressed_pushes_and_what_they_lack_are_all_gradients(replicas: int) -> None:
    """Under every fault of a schedule; a push that has what another one lacked is caught."""
    driver = Downpour(replicas=replicas, shards=2, compress=Int8(), fetch_every=2)
    all_hold(partial(play, driver), range(6))
    planted = partial(play, driver, machines=[planted_downpour.SendsTheRestInItsPlace])
    assert str(planted(1).violation).startswith("C1"), planted(1).violation


@pytest.mark.parametrize("planted", planted_downpour.FAULTS, ids=lambda planted: planted.machine.__name__)
def test_it_bites_under_downpour(planted: Planted) -> None:
    is_caught(planted, lambda seed: PLAYERS["downpour"](seed, machines=[planted.machine]))


@pytest.mark.parametrize("planted", planted_sandblaster.FAULTS, ids=lambda planted: planted.machine.__name__)
def test_it_bites_under_sandblaster(planted: Planted) -> None:
    is_caught(planted, lambda seed: PLAYERS["sandblaster"](seed, machines=[planted.machine]))


@pytest.mark.parametrize(
    "planted",
    [*planted_program.FAULTS, *planted_program.HOST_FAULTS],
    ids=lambda planted: planted.name.replace(" ", "-"),
)
def test_it_bites_under_all_reduce(planted: PlantedFaults) -> None:
    is_caught(planted, lambda seed: play(planted.driver, seed, faults=planted.faults))


@pytest.mark.parametrize(
    "planted",
    [
        *planted_disk.FAULTS,
        *planted_log.FAULTS,
        *planted_backup.FAULTS,
        *planted_commands.FAULTS,
        *planted_stops.FAULTS,
    ],
    ids=lambda planted: planted.name.replace(" ", "-"),
)
def test_it_bites_on_the_disk_and_at_stops(planted: PlantedFaults) -> None:
    with ExitStack() as stack:
        for fault in planted.faults:
            stack.enter_context(fault.planted())
        is_caught(planted, PLAYERS[planted.driver])


@pytest.mark.parametrize(
    ("driver", "events"),
    [
        ("downpour", ("LostPushes(",)),
        (
            "sandblaster",
            (
                "resumes after",
                "Restore(",
                "MissingUnits(",
                "Multiply(",
                "plays for the others",
                "a bit is another",
            ),
        ),
        ("all_reduce", ("Pause(", "ChunkRequest(", "FinalChunk(", "piece=2")),
    ],
)
def test_schedules_are_of_all_kinds(driver: str, events: tuple[str, ...]) -> None:
    """Nothing is checked by schedules in which nothing happens."""
    traces = ["\n".join(PLAYERS[driver](seed, keep_all=True).trace) for seed in range(100)]
    for event in (
        *events,
        "crashes",
        "loses power",
        "freezes for",
        "Commit",
        "Failed(",
        "Restart(",
        "StopRequested",
    ):
        assert sum(event in trace for trace in traces) >= 2, event


# Stragglers.


def seconds(replicas: int, *, slowness: tuple[float, ...] = (), backups: bool = True) -> float:
    """Virtual time of a run without faults, of a few portions for each replica."""
    portions = Portions(60, 1)
    objective, method = Objective(portions), LBFGS(history=3, max_iterations=3)
    environment = Environment(
        topology=Topology(replicas, 1, 2),
        disk_fails=0.0,
        write_s=0.01,
        checkpoint_every_s=None,
        network=NetworkFaults(),
        chaos_s=200.0,
        faults=0,
        can_kill=True,
        sees_exits=True,
        stall_s=1e6,
        raising=None,
        stop_at=None,
    )
    scenario = Scenario(
        environment=environment,
        machines=(4,),
        portions=portions,
        unit_size=4,
        begin=lambda: method.steps(objective),
        backups=backups,
        portion_s=0.1,
        slowness=slowness,
    )
    outcome = play_sandblaster(None, 3, scenario=scenario)
    assert outcome.violation is None, report_of(outcome)
    return outcome.virtual_s


@pytest.mark.parametrize("slowness", [(10.0,), (100.0,), (10.0, 100.0)])
def test_stragglers_cost_little_and_would_cost_much_without_backups(slowness: tuple[float, ...]) -> None:
    without_them = seconds(4 - len(slowness))
    assert seconds(4, slowness=slowness) <= 1.3 * without_them
    assert seconds(4, slowness=slowness, backups=False) >= 2.5 * without_them


def test_replicas_share_the_work() -> None:
    assert seconds(2) < 0.65 * seconds(1)
