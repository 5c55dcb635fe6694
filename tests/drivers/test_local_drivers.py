"""Drivers whose replicas compute alone, against NumPy in float64: any replicas, one part or two."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest

from partita.engine import SGD, Adam, Momentum, Optimizer, Ring, RMSProp, Tree
from partita.engine.drivers import (
    ADMM,
    AllReduce,
    DiLoCo,
    Driver,
    DynamicAveraging,
    LocalSGD,
    ParameterAveraging,
)
from partita.engine.drivers.traffic import traffic
from partita.engine.parameters.compression import OneBit, TopK
from partita.engine.parameters.layout import gather
from partita.engine.protocol.names import part_indices, part_name
from partita.engine.protocol.views import JoinedBatches
from partita.engine.runtime.buffers import layout_of
from partita.engine.runtime.joined_hands import shared_spans
from partita.engine.runtime.joint_sampler import JointSampler
from partita.layers import Dense, HalfSquaredError, Network
from partita.partitioner import Cluster, partition
from tests.properties.dense_compressor import DenseCompressor
from tests.runtime.members import Members

Vector: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]

EXAMPLES, BATCH, INPUTS, OUTPUTS = 23, 3, 4, 3
RATE = 0.05


def data() -> dict[str, Any]:
    random = np.random.default_rng(5)
    x = random.normal(size=(EXAMPLES, INPUTS))
    return {"x": x, "y": x @ random.normal(size=(INPUTS, OUTPUTS)) + 0.3}


def network() -> Network:
    net = Network("linear")
    scores = Dense(OUTPUTS, name="scores")(net.input("x", shape=(INPUTS,)))
    net.loss = HalfSquaredError()(scores, net.target("y"))
    return net


def flat(parameters: dict[str, Any]) -> Vector:
    return np.concatenate([np.ravel(parameters[name]) for name in sorted(parameters)])


def gradient(w: Vector, shapes: dict[str, tuple[int, ...]], chosen: Any) -> Vector:
    """The mean gradient over some examples; zeros without any."""
    found = {}
    start = 0
    for name in sorted(shapes):
        size = math.prod(shapes[name])
        found[name] = w[start : start + size].reshape(shapes[name])
        start += size
    (matrix,) = (name for name in found if len(shapes[name]) == 2)
    (bias,) = (name for name in found if len(shapes[name]) == 1)
    given = data()
    x, y = given["x"][chosen], given["y"][chosen]
    weights = found[matrix] if found[matrix].shape == (OUTPUTS, INPUTS) else found[matrix].T
    slope = (x @ weights.T + found[bias] - y) / max(len(chosen), 1)
    of_matrix = slope.T @ x
    own = of_matrix if found[matrix].shape == (OUTPUTS, INPUTS) else of_matrix.T
    return flat({matrix: own, bias: slope.sum(axis=0)})


class Reference:
    """All replicas in one process, in float64."""

    def __init__(self, start: Vector, shapes: dict[str, tuple[int, ...]], driver: Any, epochs: int) -> None:
        self.n = driver.replicas
        self.x = [start.copy() for _ in range(self.n)]
        self.batches = JoinedBatches(EXAMPLES, BATCH)
        self.sampler = JointSampler(self.batches, seed=0, reshuffles=driver.reshuffles)
        self.shapes, self.until, self.position, self.step = shapes, epochs * EXAMPLES, 0, 0
        self.compressors: list[DenseCompressor] = []
        self.tensors: list[Vector] = []

    def rounds(self, every: int | None) -> Iterator[int]:
        """Yields the steps of each round, as a list of positions."""
        while self.position < self.until:
            positions = [self.position]
            while True:
                self.position = self.batches.after(self.position, self.n)
                self.step += 1
                if self.position >= self.until or (every and self.step % every == 0):
                    break
                positions.append(self.position)
            yield positions  # type: ignore[misc]

    def of(self, rank: int, position: int) -> tuple[Vector, float]:
        """A replica's gradient, and its share of the examples."""
        chosen = self.sampler.indices(position, rank=rank, replicas=self.n)
        return gradient(self.x[rank], self.shapes, chosen), len(chosen) / self.sampler.total(position, self.n)

    def local(self, positions: Any) -> None:
        for position in positions:
            for rank in range(self.n):
                self.x[rank] = self.x[rank] - RATE * self.of(rank, position)[0]

    def agree(self, vector: Vector) -> None:
        self.x = [vector.copy() for _ in range(self.n)]

    def mean(self, changes: list[Vector], driver: Any) -> Vector:
        """The mean of what replicas have changed, as far as their messages have it."""
        if driver.compress is None:
            return np.mean(changes, axis=0)
        if not self.compressors:
            size = len(changes[0])
            self.compressors = [DenseCompressor(driver.compress, self.tensors, size) for _ in changes]
        shares = zip(self.compressors, changes, strict=True)
        return np.sum([one.sent(change / self.n, self.step - 1) for one, change in shares], axis=0)


def local_sgd(found: Reference, driver: Any) -> None:
    anchor = found.x[0].copy()
    for positions in found.rounds(driver.every):
        found.local(positions)
        anchor = anchor + found.mean([x - anchor for x in found.x], driver)
        found.agree(anchor)


def diloco(found: Reference, driver: DiLoCo) -> None:
    anchor, velocity = found.x[0].copy(), np.zeros_like(found.x[0])
    for positions in found.rounds(driver.every):
        found.local(positions)
        delta = found.mean([anchor - x for x in found.x], driver)
        velocity = driver.outer_momentum * velocity + delta
        direction = delta + driver.outer_momentum * velocity if driver.nesterov else velocity
        anchor = anchor - driver.outer_learning_rate * direction
        found.agree(anchor)


def dynamic_rounds(found: Reference, driver: DynamicAveraging) -> Iterator[tuple[int, int]]:
    """Yields the exchanges of inner products in each round, and the members of its mean."""
    reference, violations = found.x[0].copy(), 0
    for positions in found.rounds(driver.every):
        found.local(positions)
        drift = [x - reference for x in found.x]
        members, tests = [r for r in range(found.n) if drift[r] @ drift[r] > driver.delta], 1
        violations += len(members)
        if found.position >= found.until or violations >= found.n:
            members = [*range(found.n)]
        while 0 < len(members) < found.n:
            mean, tests = np.mean([drift[r] for r in members], axis=0), tests + 1
            if mean @ mean <= driver.delta:
                break
            ranks = [(found.step + n) % found.n for n in range(found.n)]
            members = sorted([*members, next(rank for rank in ranks if rank not in members)])
        for r in members:
            found.x[r] = reference + np.mean([drift[r] for r in members], axis=0)
        if len(members) == found.n:
            reference, violations = found.x[0].copy(), 0
        yield tests, len(members)


def dynamic(found: Reference, driver: DynamicAveraging) -> None:
    for _ in dynamic_rounds(found, driver):
        pass


def admm(found: Reference, driver: ADMM) -> None:
    z, rho = found.x[0].copy(), driver.rho
    y = [np.zeros_like(z) for _ in range(found.n)]
    for positions in found.rounds(driver.every):
        for position in positions:
            for r in range(found.n):
                own, share = found.of(r, position)
                found.x[r] = found.x[r] - RATE * (share * own + y[r] + rho * (found.x[r] - z))
        mean = np.mean([x + u / rho for x, u in zip(found.x, y, strict=True)], axis=0)
        mean *= rho * found.n / (rho * found.n + driver.l2)
        apart = [x - mean for x in found.x]
        primal = math.sqrt(sum(one @ one for one in apart))
        dual = rho * math.sqrt(found.n * ((mean - z) @ (mean - z)))
        y = [u + rho * one for u, one in zip(y, apart, strict=True)]
        z = mean
        found.agree(z)
        if driver.adapts:
            rho = rho * 2 if primal > 10 * dual else rho / 2 if dual > 10 * primal else rho


COMMON: dict[str, Any] = {"optimizer": SGD(RATE), "every": 3}
DRIVERS: list[tuple[Callable[[int], Driver], Callable[[Reference, Any], None]]] = [
    (lambda n: LocalSGD(replicas=n, by=Tree(), **COMMON), local_sgd),
    (lambda n: ParameterAveraging(replicas=n, optimizer=SGD(RATE)), local_sgd),
    (lambda n: DiLoCo(replicas=n, **COMMON), diloco),
    (lambda n: LocalSGD(replicas=n, compress=TopK(0.2, 0.5, warm_up=9), **COMMON), local_sgd),
    (lambda n: DiLoCo(replicas=n, compress=OneBit(), **COMMON), diloco),
    (lambda n: DynamicAveraging(replicas=n, delta=0.02, **COMMON), dynamic),
    (lambda n: ADMM(replicas=n, l2=0.1, rho=0.3, absolute=0.0, relative=0.0, **COMMON), admm),
]
NAMES = ["local SGD", "parameter averaging", "DiLoCo", "top-k", "1-bit DiLoCo", "dynamic averaging", "ADMM"]


def trained(driver: Any, folder: Path, *, machines: int, epochs: int) -> tuple[Vector, Vector, Members]:
    plan = partition(network(), Cluster.local(machines=machines), batch=BATCH, precision="float64")
    members = Members(
        plan,
        data(),
        folder,
        by=driver.by,
        optimizer=driver.optimizer,
        replicas=driver.replicas,
        driver=driver,
    )
    start = flat(members.parameters(0))
    members.publish(1, range(driver.replicas), until=epochs * EXAMPLES)
    members.run()
    found = [flat(members.parameters(replica)) for replica in range(driver.replicas)]
    members.close()
    for other in found[1:]:
        np.testing.assert_array_equal(found[0], other)
    return start, found[0], members


def tensors_of(members: Members, shapes: dict[str, tuple[int, ...]]) -> list[Vector]:
    """Returns the places in a flat vector of each tensor, or the part of one that a machine has."""
    places, start = {}, 0
    for name in sorted(shapes):
        stop = start + math.prod(shapes[name])
        places[name], start = np.arange(start, stop).reshape(shapes[name]), stop
    slots = (slot for machine in layout_of(members.plan, shards=1).machines for slot in machine)
    return [gather([slot], places, np.dtype(np.int64)) for slot in slots if slot.size]


@pytest.mark.parametrize(("replicas", "machines"), [(1, 1), (2, 2), (3, 1), (4, 2)])
@pytest.mark.parametrize(("driver", "reference"), DRIVERS, ids=NAMES)
def test_a_driver_follows_its_algorithm(
    driver: Callable[[int], Driver],
    reference: Callable[[Reference, Any], None],
    replicas: int,
    machines: int,
    tmp_path: Path,
) -> None:
    made = driver(replicas)
    start, found, members = trained(made, tmp_path, machines=machines, epochs=4)
    shapes = {name: array.shape for name, array in members.parameters(0).items()}
    expected = Reference(start, shapes, made, epochs=4)
    expected.tensors = tensors_of(members, shapes)
    reference(expected, made)
    np.testing.assert_allclose(found, expected.x[0], rtol=1e-9, atol=1e-12)
    assert not np.allclose(found, start)


@pytest.mark.parametrize("driver", [made for made, _ in DRIVERS], ids=NAMES)
@pytest.mark.parametrize(("replicas", "machines"), [(3, 1), (2, 2)])
def test_what_is_sent_is_what_the_formulas_say(
    driver: Callable[[int], Driver], replicas: int, machines: int, tmp_path: Path
) -> None:
    made = driver(replicas)
    if isinstance(made, DynamicAveraging):
        made = replace(made, delta=1e-9)  # all are violators in every round
    _, _, members = trained(made, tmp_path, machines=machines, epochs=2)
    sizes = [members.bodies[part_name(0, m)].arrays.vectors.size for m in range(machines)]  # type: ignore[attr-defined]
    for name in members.bodies:
        replica, machine = part_indices(name) or (0, 0)
        sent = [members.sent_bytes.get((name, kind), 0) for kind in ("PartialChunk", "FinalChunk")]
        run = {"examples": EXAMPLES, "batch": BATCH, "epochs": 2, "sizes": sizes, "item_bytes": 8}
        run["shapes"] = shared_spans(layout_of(members.plan, shards=1))[machine][0].tensors
        assert sum(sent) == traffic(made, replica=replica, machine=machine, **run).n_bytes  # type: ignore[arg-type]


@pytest.mark.parametrize("delta", [0.02, 0.1])
def test_a_mean_of_some_replicas_sends_their_numbers_there_and_back(delta: float, tmp_path: Path) -> None:
    """2 (B - 1) S bytes for a mean of B replicas, however they joined, beside the inner products."""
    made = DynamicAveraging(replicas=4, delta=delta, optimizer=SGD(RATE), every=1)
    start, _, members = trained(made, tmp_path, machines=1, epochs=4)
    shapes = {name: array.shape for name, array in members.parameters(0).items()}
    rounds = [*dynamic_rounds(Reference(start, shapes, made, epochs=4), made)]
    assert any(0 < taken < 4 for _, taken in rounds), "there are means of some"
    pairs = sum(2 * (taken - 1) for _, taken in rounds if taken)
    products = sum(tests for tests, _ in rounds) * 2 * 3 * 4
    sent = sum(n for (_, kind), n in members.sent_bytes.items() if kind in ("PartialChunk", "FinalChunk"))
    assert sent == 8 * (pairs * start.size + products)


def test_local_steps_send_less_by_the_length_of_a_round() -> None:
    run: dict[str, Any] = {"examples": 1600, "batch": 8, "epochs": 1, "sizes": [1000]}
    each = traffic(AllReduce(replicas=2), **run)
    rounds = traffic(LocalSGD(replicas=2, every=20), **run)
    assert (each.n_bytes, each.messages) == (100 * 4000, 100 * 2)
    assert (rounds.n_bytes, rounds.messages) == (5 * 4000, 5 * 2)
    once = traffic(ParameterAveraging(replicas=4), **run)
    assert once.n_bytes == 2 * 3 * 4000 // 4, "a ring: 2 (N - 1) / N of the vector"


def test_diloco_without_momentum_at_a_rate_of_one_is_local_sgd(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    plain = DiLoCo(replicas=2, outer_learning_rate=1.0, outer_momentum=0.0, nesterov=False, **COMMON)
    _, one, _ = trained(LocalSGD(replicas=2, **COMMON), tmp_path, machines=1, epochs=2)
    _, other, _ = trained(plain, tmp_path / "one", machines=1, epochs=2)
    np.testing.assert_allclose(one, other, rtol=1e-12)


def test_rounds_of_one_step_are_synchronous_sgd(tmp_path: Path) -> None:
    """The mean of steps is the step of the mean gradient, where all replicas have as many examples."""
    (tmp_path / "one").mkdir()
    local = LocalSGD(replicas=2, every=1, optimizer=SGD(RATE))
    together = AllReduce(replicas=2, optimizer=SGD(RATE))
    until = (EXAMPLES // (2 * BATCH)) * 2 * BATCH / EXAMPLES
    _, one, _ = trained(local, tmp_path, machines=1, epochs=until)  # type: ignore[arg-type]
    _, other, _ = trained(together, tmp_path / "one", machines=1, epochs=until)  # type: ignore[arg-type]
    np.testing.assert_allclose(one, other, rtol=1e-12)


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: LocalSGD(every=0), "every is 0"),
        (lambda: LocalSGD(by="ring"), "by is 'ring'"),  # type: ignore[arg-type]
        (lambda: LocalSGD(optimizer=SGD(0.1, clip_norm=1.0)), "needs the norms"),
        (lambda: DiLoCo(outer_momentum=2.0), "momentum"),
        (lambda: DiLoCo(compress="top-k"), "DiLoCo's compress is 'top-k'"),  # type: ignore[arg-type]
        (lambda: LocalSGD(by=Tree(), compress=OneBit()), r"which Tree\(\) does not do"),
        (lambda: DynamicAveraging(delta=0), "delta is 0"),
        (lambda: ADMM(rho=0.0), "rho is 0"),
        (lambda: ADMM(l2=-1.0), "l2 is -1"),
        (lambda: ADMM(every=None, by=Ring(), optimizer=Momentum(0.1), replicas=0), "replicas is 0"),
    ],
)
def test_settings_out_of_range_are_refused(make: Callable[[], Driver], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        make()


@pytest.mark.parametrize("kind", [ADMM, DiLoCo, DynamicAveraging, LocalSGD, ParameterAveraging])
@pytest.mark.parametrize("optimizer", [Adam(0.1), RMSProp(0.1, centered=True, momentum=0.5)])
def test_vectors_of_a_driver_leave_their_names_to_states_of_optimizers(
    kind: Callable[..., Driver], optimizer: Optimizer
) -> None:
    kind(optimizer=optimizer).check_programs()
