"""Plans with a GPU among their machines compute what one CPU does: staging, messages, updates, drivers."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from partita.engine import LARS, SGD, Adam, AllReduce, Downpour, Optimizer, RunFailed, Session, train
from partita.engine.kernels.layer_form import LayerFormKernel
from partita.engine.kernels.node import NodeKernel
from partita.engine.launch import ThreadLauncher
from partita.engine.parameters import initialise
from partita.layers import (
    Activation,
    Add,
    Conv2D,
    Dense,
    Dropout,
    L2Pool2D,
    LayerNorm,
    LocalContrastNormalisation2D,
    LocallyConnected2D,
    Network,
    Node,
    OneToOne,
    RMSNorm,
    SoftmaxCrossEntropy,
)
from partita.partitioner import Cluster, InputSplit, Machine, Plan, RowSplit, Tiles, partition
from partita.partitioner.assign.cuts import Cut
from tests.faults import toy
from tests.networks import LEARNS, energy, energy_errors
from tests.on_torch.on_device import DEVICES, tensors_at
from tests.runtime import replica

BATCH = 3
pytestmark = pytest.mark.parametrize("where", DEVICES)


@pytest.fixture(autouse=True)
def there_is_a_device(where: str) -> None:
    tensors_at(where)


def mixed(where: str, *, first: bool = False) -> Cluster:
    """A CPU and a device of torch."""
    machines = Machine("cpu"), Machine("there", device=where)
    return Cluster(machines[::-1] if first else machines)


def alone(where: str) -> Cluster:
    return Cluster((Machine("there", device=where),))


def network() -> Network:
    """A layer of every kind of kernel, over a picture of few rows."""
    net = Network("mixed")
    picture = net.input("picture", shape=(4, 3, 1))
    local = LocallyConnected2D(2, 2, padding="same", activation="tanh", name="local")(picture)
    shared = Conv2D(2, 3, padding=1, activation="sigmoid", name="shared")(local)
    node = Node(OneToOne(), energy, energy_errors, learns=LEARNS[energy][1], name="node")(shared)
    both = Add(name="both")(node, Activation("tanh", name="bent")(shared))
    pooled = L2Pool2D(2, stride=1, name="pooled")(LocalContrastNormalisation2D(3, name="normal")(both))
    smooth = Activation("gelu", name="smooth")(LayerNorm(epsilon=1.0, name="layer_norm")(pooled))
    dropped = Dropout(0.25, name="dropped")(RMSNorm(epsilon=1.0, name="rms_norm")(smooth))
    hidden = Dense(4, activation="relu", name="hidden")(dropped)
    net.loss = SoftmaxCrossEntropy(name="loss")(Dense(3, name="scores")(hidden), net.target("label"))
    return net


def plan_of(cluster: Cluster, *, precision: str = "float64", tiles: bool = False) -> Plan:
    graph, n = network().graph(), len(cluster)
    cuts: dict[str, Cut] = {grid.name: RowSplit(n) for grid in graph.computed if grid.layer.cuttable}
    if tiles:
        cuts |= {g.name: Tiles(n, (1, n)) for g in graph.computed if g.tiling_rejection() is None}
    else:
        cuts["hidden"] = InputSplit(n, replicated=True)
    return partition(graph, cluster, batch=BATCH, cuts=cuts, precision=precision, strategy="balanced")


def given() -> tuple[dict[str, Any], dict[str, Any]]:
    """Parameters and a batch."""
    draw, graph = np.random.default_rng(0), network().graph()
    batch = {"picture": draw.normal(size=(BATCH, 4, 3, 1)), "label": draw.integers(0, 3, BATCH)}
    return initialise(graph.parameters.values(), 1, dtype="float64"), batch


def played(
    cluster: Cluster,
    *,
    precision: str = "float64",
    steps: int = 1,
    optimizer: Optimizer | None = None,
    tiles: bool = False,
) -> Any:
    """Results of a session's last step."""
    plan = plan_of(cluster, precision=precision, tiles=tiles)
    parameters, batch = given()
    names = ["parameters", *(["gradient"] if optimizer is None else [])]
    names += [grid.name for grid in plan.graph.computed if grid.name != "loss"]
    with Session(plan, parameters, train=True, optimizer=optimizer) as session:
        for _ in range(steps):
            step = session.step(batch, collect=tuple(names))
    return step


def assert_near(found: Any, expected: Any, *, tolerance: float) -> None:
    assert found.loss == pytest.approx(expected.loss, rel=tolerance)
    assert found.correct == expected.correct
    for ours, theirs in ((found.collected, expected.collected), (found.vectors, expected.vectors)):
        for name, arrays in theirs.items():
            pairs = {name: (ours[name], arrays)}
            if isinstance(arrays, dict):
                pairs = {key: (ours[name][key], array) for key, array in arrays.items()}
            for key, (one, other) in pairs.items():
                np.testing.assert_allclose(
                    one, other, rtol=tolerance, atol=tolerance, err_msg=f"{name} {key}"
                )


@pytest.mark.parametrize("order", ["last", "first", "alone"])
def test_a_step_equals_that_of_a_cpu(where: str, order: str) -> None:
    cluster = alone(where) if order == "alone" else mixed(where, first=order == "first")
    assert_near(played(cluster), played(Cluster.local()), tolerance=1e-9)


@pytest.mark.parametrize("first", [False, True])
def test_tiles_equal_the_whole_of_a_cpu(where: str, first: bool) -> None:
    cluster = mixed(where, first=first)
    assert_near(played(cluster, tiles=True), played(Cluster.local()), tolerance=1e-9)


@pytest.mark.parametrize(
    "optimizer", [Adam(0.1), SGD(0.1, clip_norm=0.01), LARS(0.1)], ids=["blocks", "clipped", "lars"]
)
def test_steps_of_a_rule_equal_those_of_a_cpu(where: str, optimizer: Optimizer) -> None:
    found, expected = (
        played(cluster, steps=2, optimizer=optimizer) for cluster in (mixed(where), Cluster.local())
    )
    assert_near(found, expected, tolerance=1e-9)


@pytest.mark.slow
def test_in_bfloat16_it_stays_near(where: str) -> None:
    found = played(mixed(where), precision="bfloat16", steps=2, optimizer=SGD(0.1))
    assert_near(found, played(Cluster.local(), steps=2, optimizer=SGD(0.1)), tolerance=0.1)


def test_in_line_too(where: str) -> None:
    parameters, batch = given()
    with Session(plan_of(alone(where)), parameters, train=True, hosts="inline") as session:
        found = session.step(batch, collect=("scores", "gradient"))
        backend: Any = session._backend
        kernels = backend._part.computations._kernels
        assert all(isinstance(one.kernel, LayerFormKernel | NodeKernel) for one in kernels.values())
    expected = played(Cluster.local())
    np.testing.assert_allclose(found.collected["scores"], expected.collected["scores"], rtol=1e-9)
    for name, gradient in expected.vectors["gradient"].items():
        np.testing.assert_allclose(found.vectors["gradient"][name], gradient, rtol=1e-9, atol=1e-12)


@pytest.fixture
def on_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainings run on threads of this process."""
    monkeypatch.setattr(
        sys.modules["partita.engine.run.train"], "ProcessLauncher", lambda **_: ThreadLauncher()
    )


def test_downpour_fetches_pushes_and_learns(where: str, on_threads: None) -> None:
    graph = toy.network(hidden=4).graph()
    cuts = {"hidden": RowSplit(2), "scores": RowSplit(2)}
    plan = partition(graph, mixed(where), batch=16, cuts=cuts, strategy="balanced")
    driver = Downpour(shards=2, optimizer=SGD(0.5), fetch_every=1, push_every=1)
    run = train(plan, toy.data(64), driver=driver, epochs=3, show="nothing")
    assert run.steps == (12,)
    before = initialise(graph.parameters.values(), 0)
    assert all(np.abs(run.parameters[name] - before[name]).max() > 0 for name in before)
    data = {name: array[:16] for name, array in toy.data(64).items()}
    still = replace(plan, cluster=Cluster.local(machines=2))
    with Session(still, before) as first, Session(still, run.parameters) as last:
        assert last.step(data).loss < 0.8 * first.step(data).loss


@pytest.mark.usefixtures("on_threads")
@pytest.mark.parametrize("sharded", [False, True])
def test_replicas_add_up_what_a_gpu_computes(where: str, sharded: bool) -> None:
    """Two replicas of a CPU and a GPU are two of two CPUs, also with a state that is copied and written."""
    data = toy.data(48)
    found = []
    for cluster in (mixed(where), Cluster.local(machines=2)):
        plan = partition(toy.network(), cluster, batch=6, strategy="balanced")
        driver = AllReduce(replicas=2, optimizer=Adam(0.01, clip_norm=1.0), shard_optimizer=sharded)
        found.append(train(plan, data, driver=driver, epochs=1, show="nothing").parameters)
    for name, numbers in found[1].items():
        np.testing.assert_allclose(found[0][name], numbers, rtol=1e-3, atol=1e-5, err_msg=name)


def test_numbers_that_run_away_are_found(where: str, on_threads: None) -> None:
    plan = partition(toy.network(hidden=4), alone(where), batch=16, strategy="balanced")
    with pytest.raises(RunFailed, match=r"(is|are) not finite; lower the"):
        train(plan, toy.data(32), driver=Downpour(shards=1, optimizer=SGD(3e38)), epochs=100, show="nothing")


def test_work_units_are_summed_there(where: str, tmp_path: Path) -> None:
    """The last portion is filled up, in micro-batches, and a CPU has the other half."""
    plan = partition(
        toy.network(),
        mixed(where),
        batch=replica.BATCH,
        micro_batches=2,
        cuts={"hidden": RowSplit(2), "scores": RowSplit(2)},
    )
    parameters, data = replica.parameters_of(plan), replica.toy_data("float32")
    loss, gradient = replica.truth(plan, parameters, data)
    parts = replica.Replica(plan, data, tmp_path)
    try:
        parts.begin(1, parameters)
        parts.schedule(0, 0, replica.ALL)
        assert math.fsum(one.loss for one in parts.until(0)) == pytest.approx(loss, rel=1e-5)
        replica.assert_same(parts.gradient(1, 0), gradient, times=replica.BATCH, tolerance=1e-5)
    finally:
        parts.close()
