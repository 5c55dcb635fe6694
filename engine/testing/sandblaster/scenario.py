"""The draw of a seed under Sandblaster: environment, a function, a method, and how they are cut."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, cast

from partita.engine.drivers.sandblaster import Sandblaster
from partita.engine.methods import LBFGS, GradientDescent, NonlinearCG, Objective
from partita.engine.protocol.commands import Portions, Steps
from partita.engine.protocol.names import Topology
from partita.engine.protocol.views import Outline
from partita.engine.testing.sandblaster.random_method import RandomMethod
from partita.engine.testing.scenario import Environment, draw_environment, small_count


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One schedule's draw. Times in seconds of virtual time.

    Attributes:
        environment: the draw that all drivers share.
        driver: the driver, as far as it is not drawn.
        machines: how many numbers each machine holds; some hold none.
        portions: of the data.
        unit_size: portions whose gradient is sent at once.
        begin: starts the method.
        backups: whether portions are assigned again.
        portion_s: the longest time of a portion.
        slowness: by which factor the first replicas take longer; the others take 1.
        operation_s: the longest time of a shard's operations in a row, or of going back to a checkpoint; 0:
            no message comes meanwhile.
        restart_s: the longest that a crashed coordinator stays away.
        loses_power: whether a coordinator that crashes takes with it what is written, but not synced.
    """

    environment: Environment
    driver: Sandblaster = field(default=Sandblaster())
    machines: tuple[int, ...]
    portions: Portions
    unit_size: int
    begin: Callable[[], Steps]
    backups: bool = True
    portion_s: float = 0.02
    slowness: tuple[float, ...] = ()
    operation_s: float = 0.0
    restart_s: float = 2.0
    loses_power: bool = False


def draw(random: Random, driver: Sandblaster | None) -> Scenario:
    """The scenario of a seed. None: the driver is drawn, too."""
    topology = Topology(random.choice((1, 2, 2, 3)), small_count(random), small_count(random))
    if driver is not None:
        topology = Topology(driver.replicas, topology.machines, driver.shards)
    size = random.choice((1, 2, 2))
    n_portions = random.randint(2, 8)
    portions = Portions(n_portions * size - random.randrange(size), size)
    unit_size, backups = random.choice((1, 2, 2, 3)), random.random() < 0.9
    scenario = Scenario(
        environment=draw_environment(random, topology),
        # the first machine holds something
        machines=tuple(random.choice((1, 2, 3, 4, 0) if n else (2, 3, 4)) for n in range(topology.machines)),
        portions=portions,
        unit_size=unit_size,
        begin=_draw_method(random, portions),
        backups=backups,
        portion_s=random.choice((0.01, 0.03, 0.1)),
        slowness=random.choice(((), (), (4.0,), (50.0 if backups and topology.replicas > 1 else 6.0,))),
        loses_power=random.random() < 0.5,
        operation_s=random.choice((0.0, 0.0, 0.1, 6.0)),
    )
    return scenario if driver is None else _of_driver(scenario, driver, random)


def _of_driver(scenario: Scenario, driver: Sandblaster, random: Random) -> Scenario:
    """A scenario in which a driver is as it was given: its method, portions, and backups."""
    examples, batch = scenario.portions.examples, scenario.portions.size
    if driver.batch is not None:
        examples, batch = random.randint(2, 3) * driver.batch, 1
    objective = driver.objective(plan_batch=batch, examples=examples)
    outline, plan = Outline(0, examples, batch, driver.replicas), cast(Any, driver.coordinator)
    return replace(
        scenario,
        driver=driver,
        portions=objective.portions,
        unit_size=driver.unit_size(objective),
        begin=lambda: plan(outline),
        backups=driver.backups,
    )


def _draw_method(random: Random, portions: Portions) -> Callable[[], Steps]:
    if random.random() < 0.4:
        seed, requests = random.getrandbits(32), random.randint(2, 8)
        return RandomMethod(seed, requests=requests, portions=portions.per_epoch).steps
    iterations = random.randint(1, 3)
    method = random.choice(
        (
            LBFGS(history=random.choice((1, 2, 3)), max_iterations=iterations),
            GradientDescent(max_iterations=iterations),
            NonlinearCG(max_iterations=iterations),
        )
    )
    batch, overlap = None, 0
    if portions.per_epoch > 2 and random.random() < 0.3:
        batch, overlap = random.randint(2, portions.per_epoch - 1), 1
    objective = Objective(portions, batch=batch, overlap=overlap, l2=random.choice((0.0, 0.1)))
    return lambda: method.steps(objective)
