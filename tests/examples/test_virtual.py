"""Drivers in virtual time: with one replica, or without spread, they do what their own arithmetic says."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from math import inf
from pathlib import Path

import numpy as np
import pytest

from examples.reproduce import contenders, drivers, stragglers
from examples.reproduce.contenders import CONTENDERS, REPLICAS
from examples.reproduce.courses import Course, course
from examples.reproduce.two_functions import Problem
from examples.reproduce.virtual import Hosts, World
from examples.reproduce.virtual.server_link import ServerLink
from examples.reproduce.virtual.world import APART
from partita.engine import (
    EASGD,
    SGD,
    AllReduce,
    Bounded,
    Codistillation,
    Compensated,
    Damped,
    DecoupledDiLoCo,
    Downpour,
    DynamicAveraging,
    FedAvg,
    LocalSGD,
    ParameterAveraging,
)
from partita.engine.drivers import Driver
from partita.engine.protocol.exchange.algorithm import Link
from partita.engine.protocol.staleness import AS_IT_IS


@pytest.fixture(scope="module")
def problem() -> Problem:
    return Problem()


def gradient_descent(problem: Problem, world: World, *, steps: int, each: int, rate: float) -> np.ndarray:
    """What a driver should compute: the mean gradient of so many minibatches in each step."""
    w = problem.start(0)
    for step in range(steps):
        units = range(step * each, (step + 1) * each)
        w = w - np.float32(rate) * np.mean([problem.gradient(w, world.examples(u)) for u in units], axis=0)
    return w


@pytest.mark.parametrize("staleness", [AS_IT_IS, Damped(), Compensated(), Bounded(0)], ids=str)
def test_one_replica_is_sequential_gradient_descent(problem: Problem, staleness: object) -> None:
    driver = Downpour(optimizer=SGD(0.1), staleness=staleness)  # type: ignore[arg-type]
    world = World(driver, problem, Hosts(step_s=1.0))
    world.play(20.9)
    assert world.links is not None
    expected = gradient_descent(problem, world, steps=world.links.shard.version, each=1, rate=0.1)
    assert world.links.shard.version > 15
    np.testing.assert_allclose(world.point, expected, rtol=1e-4, atol=1e-6)


def test_all_reduce_is_gradient_descent_on_joined_batches(problem: Problem) -> None:
    world = World(AllReduce(replicas=3, optimizer=SGD(0.1)), problem, Hosts(spread=1.0))
    world.play(3.0)
    found = {one.step for one in world.replicas}
    done = max(world.replicas[0].states)
    assert found == {done} and done > 5
    expected = gradient_descent(problem, world, steps=done, each=3, rate=0.1)
    np.testing.assert_allclose(world.point, expected, rtol=1e-3, atol=1e-5)
    n = Hosts().n_bytes
    assert world.n_bytes == pytest.approx(done * 2 * 2 * n, rel=0.05), "2 (N - 1) S for each sum"


@pytest.mark.parametrize("every", [4, None])
def test_local_steps_are_those_of_each_replica_with_means_between(
    problem: Problem, every: int | None
) -> None:
    kind = ParameterAveraging if every is None else LocalSGD
    world = World(kind(replicas=3, every=every, optimizer=SGD(0.1)), problem, Hosts(step_s=1.0))
    world.play(10.0)
    done = min(max(one.states) for one in world.replicas)
    assert done >= 8
    points = [problem.start(0)] * 3
    for step in range(done):
        found = [problem.gradient(w, world.examples(3 * step + rank)) for rank, w in enumerate(points)]
        points = [w - np.float32(0.1) * g for w, g in zip(points, found, strict=True)]
        points = [np.mean(points, axis=0)] * 3 if (step + 1) % (every or done) == 0 else points
    np.testing.assert_allclose(world.point, np.mean(points, axis=0), rtol=1e-4, atol=1e-6)
    world.finish()
    rounds = 1 + (0 if every is None else done // every)
    assert world.n_bytes == pytest.approx(rounds * 2 * 2 * Hosts().n_bytes, rel=1e-3), "2 (N - 1) S a round"


def test_dynamic_averaging_sends_means_of_some_replicas(problem: Problem) -> None:
    """2 (B - 1) S for a mean of B of 4 replicas; a mean of all is a round of local SGD."""
    driver = DynamicAveraging(replicas=4, every=4, delta=0.2, optimizer=SGD(0.2))
    world = World(driver, problem, Hosts(spread=0.5))
    world.play(12.0)
    pairs = world.n_bytes / (2 * Hosts().n_bytes)
    rounds = min(max(one.states) for one in world.replicas) // 4
    assert 0 < pairs < 3 * rounds and round(pairs) % 3
    assert problem.accuracy(world.point) > 0.8


def test_elastic_averaging_of_one_replica_is_its_formula(problem: Problem) -> None:
    driver = EASGD(optimizer=SGD(0.1), every=3, moving_rate=0.25)
    world = World(driver, problem, Hosts(step_s=1.0))
    world.play(30.9)
    assert world.links is not None
    x = centre = problem.start(0)
    pushes = world.links.shard.version
    for step in range(3 * pushes):
        x = x - np.float32(0.1) * problem.gradient(x, world.examples(step))
        if (step + 1) % 3 == 0:
            moved = np.float32(0.25) * (x - centre)
            x, centre = x - moved, centre + moved
    assert pushes > 8
    np.testing.assert_allclose(world.point, centre, rtol=1e-4, atol=1e-6)


def test_decoupled_diloco_in_step_is_its_formula_fragment_by_fragment(problem: Problem) -> None:
    """What is fetched after a push is installed two steps later, and the changes since are made over it."""
    driver = DecoupledDiLoCo(replicas=2, every=4, fragments=3, quorum=2, optimizer=SGD(0.1))
    world = World(driver, problem, Hosts(step_s=1.0))
    world.play(20.5)
    assert world.links is not None and [world.links.done(rank) for rank in (0, 1)] == [20, 20]
    anchor = problem.start(0)
    x, since, velocity = [anchor.copy() for _ in range(2)], [anchor.copy() for _ in range(2)], 0 * anchor
    cuts, arrived = [anchor.size * n // 3 for n in range(4)], list[tuple[slice, np.ndarray]]()
    for step in range(20):
        for rank in range(2):
            x[rank] -= np.float32(0.1) * problem.gradient(x[rank], world.examples(2 * step + rank))
        due = [slice(*cuts[n : n + 2]) for n in driver.due(step)]
        for span in due:
            mean = (since[0][span] + since[1][span] - x[0][span] - x[1][span]) / 2
            for s, w in zip(since, x, strict=True):
                s[span] = w[span]
            velocity[span] = np.float32(0.9) * velocity[span] + mean
            anchor[span] -= np.float32(0.7) * (mean + np.float32(0.9) * velocity[span])
        for span, values in arrived:
            for s, w in zip(since, x, strict=True):
                own = s[span] - w[span]
                s[span], w[span] = values, values - own
        arrived = [(span, anchor[span].copy()) for span in due]
    np.testing.assert_allclose(world.point, anchor, rtol=1e-3, atol=1e-5)
    rounds, n = 20 // 4, Hosts().n_bytes
    assert world.n_bytes == pytest.approx(2 * n * (2 * rounds + 1), rel=1e-3), "2 K / H, and 1"


def test_codistillation_of_two_is_its_formula(problem: Problem) -> None:
    driver = Codistillation(replicas=2, groups=2, every=4, burn_in=2, weight=0.5, optimizer=SGD(0.1))
    world = World(driver, problem, Hosts(step_s=1.0))
    world.play(30.0)
    done = min(max(one.states) for one in world.replicas)
    x = [problem.start(0), problem.start(APART)]
    kept = list(x)
    for step in range(done):
        found = []
        for rank in range(2):
            examples = world.examples(2 * step + rank)
            taught = problem.predictions(kept[1 - rank], examples) if step >= 2 else None
            found.append(problem.gradient(x[rank], examples, taught=taught, weight=0.5))
        x = [w - np.float32(0.1) * g for w, g in zip(x, found, strict=True)]
        kept = list(x) if (step + 1) % 4 == 0 else kept
    assert done > 16
    np.testing.assert_allclose(world.point, x[0], rtol=1e-4, atol=1e-6)
    assert world.n_bytes == pytest.approx(2 * (1 + done // 4) * Hosts().n_bytes, rel=1e-3)


def test_federated_rounds_are_weighted_means_of_what_clients_find(problem: Problem) -> None:
    driver = FedAvg(replicas=2, clients=3, fraction=1.0, spread=0.5, optimizer=SGD(0.1))
    world = World(driver, problem, Hosts(step_s=1.0))
    world.play(200.0)
    division, expected = driver.division.divided(1440, 0), problem.start(0)
    sizes = driver.division.sizes(1440, 0)
    rounds = min(max(one.states) for one in world.replicas)
    assert rounds >= 2
    for number in range(rounds):
        found = []
        for client, size in enumerate(sizes):
            w = expected.copy()
            for start in range(0, size, problem.batch):
                stop = min(start + problem.batch, size)
                w -= np.float32(0.1) * problem.gradient(w, division.at(number, client, 0, start, stop))
            found.append(w)
        expected = np.average(found, axis=0, weights=sizes).astype(np.float32)
    np.testing.assert_allclose(world.point, expected, rtol=1e-4, atol=1e-5)
    begun = -(-world.n_bytes // (3 * Hosts().n_bytes))
    assert rounds <= begun <= rounds + 1, "n (R - 1) S a round"


def test_a_bounded_replica_waits_for_a_slow_one_and_another_does_not(problem: Problem) -> None:
    hosts, ahead = Hosts(slow={1: 10.0}), {}
    for staleness in (AS_IT_IS, Bounded(2)):
        world = World(Downpour(replicas=2, optimizer=SGD(0.1), staleness=staleness), problem, hosts)
        world.play(10.0)
        assert world.links is not None
        ahead[staleness] = world.links.done(0) - world.links.done(1)
    assert ahead[Bounded(2)] <= 3 < 50 < ahead[AS_IT_IS]


@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_streams_take_turns_on_the_link_of_a_server(chunk: int) -> None:
    """Against a link whose turns are played one by one."""
    begins, link = [(0.0, 12), (0.5, 3), (4.25, 9), (40.0, 2), (40.0, 7)], Link(0.125, 1.0)
    events, found, now, numbers = [], {}, [0.0], itertools.count()

    def after(seconds: float, event: Callable[[], None]) -> None:
        heapq.heappush(events, (now[0] + seconds, next(numbers), event))

    server = ServerLink(link, chunk, now=lambda: now[0], after=after)
    for n, (begin, size) in enumerate(begins):
        after(begin, lambda n=n, size=size: server.send(size, lambda: found.update({n: now[0]})))
    while events:
        now[0], _, event = heapq.heappop(events)
        event()
    expected, at, waiting, coming = {}, 0.0, [], [*enumerate(begins)]
    while waiting or coming:
        at = at if waiting else max(at, coming[0][1][0])
        turn = waiting.pop(0) if waiting else None
        ends = at + (chunk if turn else 0)
        while coming and coming[0][1][0] <= ends:
            n, (_, size) = coming.pop(0)
            waiting.append([n, -(-size // chunk)])
        at = ends
        if turn and turn[1] > 1:
            waiting.append([turn[0], turn[1] - 1])
        elif turn:
            expected[turn[0]] = at + link.latency_s
    assert found == pytest.approx(expected)


@pytest.mark.parametrize("name", CONTENDERS)
def test_every_contender_learns(problem: Problem, name: str) -> None:
    driver: Driver = CONTENDERS[name](0.1)
    assert driver.replicas == REPLICAS
    found = course(driver, problem, Hosts(spread=0.5), seed=0, target=0.5, until_s=40.0)
    assert found.points[-1][1] >= 0.5
    assert found.n_bytes > 0


def test_a_rate_that_one_trial_alone_reaches_is_not_chosen(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(driver: AllReduce, *_: object, seed: int, **__: object) -> Course:
        rate = driver.optimizer.learning_rate
        took_s = {0.2: 3.0, 0.4: 1.0 if seed == contenders.TRIALS[0] else inf}.get(rate, inf)
        return Course([(took_s, 1.0)] * 3 if took_s < inf else [])

    monkeypatch.setattr(contenders, "measured", measured)
    make = CONTENDERS["AllReduce"]
    assert contenders.rate_of(make, problem, Hosts(), target=0.93) == 0.2
    monkeypatch.setattr(contenders, "TRIALS", contenders.TRIALS[:1])
    assert contenders.rate_of(make, problem, Hosts(), target=0.93) == 0.4


def test_the_claims_of_the_map_can_fail() -> None:
    alike = dict.fromkeys(CONTENDERS, (100.0, 100.0))
    assert list(stragglers.claims(alike).values()) == [True, False, True, True, False]
    late = alike | {"AllReduce": (100.0, 300.0), "Downpour": (100.0, inf)}
    assert list(stragglers.claims(late).values()) == [False, True, True, False, True]


@pytest.mark.slow
def test_the_commands_print_and_draw(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "stragglers.svg"
    short = ["--seeds", "1", "--target", "0.3", "--only", "AllReduce"]
    stragglers.main([*short, "--spreads", "0,1", "--out", str(picture)])
    assert "AllReduce" in picture.read_text()
    drivers.main(["--seeds", "1", "--target", "0.3", "--only", "Sandblaster L-BFGS"])
    assert capsys.readouterr().out.count(" x") == 2
