"""Predictions with exits: the whole network's scores, ended where the entropy says, and sent only then."""

from __future__ import annotations

import math
import os
import signal
from typing import Any

import numpy as np
import pytest
from scipy.special import softmax
from scipy.stats import entropy as entropy_of

from partita.engine import HostError, Run, Session, choose_thresholds, predict, predict_with_exits
from partita.engine.run.exit_session import ExitSession
from partita.layers import (
    Average,
    Concatenate,
    Conv2D,
    Dense,
    Exit,
    Maximum,
    Network,
    SoftmaxCrossEntropy,
    SymbolicTensor,
)
from partita.layers.exits import normalised_entropy
from partita.partitioner import Cluster, Machine, Plan, RowSplit, Tiles, Whole, partition

DEVICES, FEATURES, CLASSES, BATCH, EXAMPLES = 3, 6, 4, 4, 26
ENDS = {"local": "local_scores", "edge": "edge_scores", "cloud": "cloud_scores"}


def feature(net: Network, device: int) -> SymbolicTensor:
    view = net.input(f"view{device}", shape=5)
    return Dense(FEATURES, activation="relu", name=f"features{device}")(view)


def ended(
    net: Network, features: list[SymbolicTensor], scores: list[SymbolicTensor], **weights: Any
) -> Network:
    """A local exit over what devices score, an exit of the edge over their features, and one of the cloud."""
    local = Maximum(name="local_scores")(*scores)
    net.exit(local, threshold=0.3, name="local", **weights)
    joined = Concatenate(name="joined")(*features, Average(name="mean")(*features))
    hidden = Dense(5, activation="tanh", name="hidden")(joined)
    net.exit(Dense(CLASSES, name="edge_scores")(hidden), threshold=0.3, name="edge")
    cloud = Dense(7, activation="tanh", name="deep")(Concatenate(name="both")(hidden, local))
    net.exit(Dense(CLASSES, name="cloud_scores")(cloud), name="cloud")
    return net


def network(**weights: Any) -> Network:
    net = Network("devices")
    features = [feature(net, device) for device in range(DEVICES)]
    scores = [Dense(CLASSES, name=f"scores{k}")(one) for k, one in enumerate(features)]
    return ended(net, features, scores, **weights)


def planned() -> Plan:
    """Devices, an edge and a cloud, each with its layers."""
    names = [*(f"device{k}" for k in range(DEVICES)), "edge", "cloud"]
    cuts = {f"{what}{k}": Whole(k) for k in range(DEVICES) for what in ("features", "scores")}
    of_edge = ("local_scores", "local", "mean", "joined", "hidden", "edge_scores", "edge")
    cuts |= dict.fromkeys(of_edge, Whole(DEVICES))
    cuts |= dict.fromkeys(("both", "deep", "cloud_scores", "cloud"), Whole(DEVICES + 1))
    cluster = Cluster(tuple(map(Machine, names)))
    return partition(network(), cluster, batch=BATCH, cuts=cuts)


@pytest.fixture(scope="module")
def run() -> Run:
    plan, draw = planned(), np.random.default_rng(4)
    shapes = {name: parameter.shape for name, parameter in plan.graph.parameters.items()}
    return Run(plan, {n: draw.normal(size=shape).astype(np.float32) for n, shape in shapes.items()})


@pytest.fixture(scope="module")
def views() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(5)
    return {f"view{k}": draw.normal(size=(EXAMPLES, 5)).astype(np.float32) for k in range(DEVICES)}


@pytest.fixture(scope="module")
def whole(run: Run, views: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The scores of all exits by the unpartitioned network, by the names of the exits."""
    found = predict(
        Run(partition(network(), Cluster.local(), batch=8), run.parameters), views, hosts="inline"
    )
    assert isinstance(found, dict)
    return {name: found[end] for name, end in ENDS.items()}


def first_exits(scores: dict[str, np.ndarray], thresholds: dict[str, float]) -> np.ndarray:
    """The number of the first exit whose normalised entropy, by SciPy in float64, is below its threshold."""
    below = [
        entropy_of(softmax(one.astype(float), axis=1), axis=1) / math.log(CLASSES) < thresholds.get(name, 2.0)
        for name, one in scores.items()
    ]
    return np.argmax(below, axis=0)


def pictures() -> Network:
    net = Network("pictures")
    maps = Conv2D(2, 3, name="conv")(net.input("picture", shape=(6, 6, 1)))
    net.exit(Dense(3, name="scores")(maps), name="only")
    return net


def batches(count: int) -> int:
    return -(-count // BATCH) * BATCH


def test_examples_end_where_the_entropy_says_and_no_byte_is_sent_for_them(
    run: Run, views: dict[str, np.ndarray], whole: dict[str, np.ndarray]
) -> None:
    found = predict_with_exits(run, views)
    expected = first_exits(whole, {"local": 0.3, "edge": 0.3})
    np.testing.assert_array_equal(found.exit, expected)
    reached = [int((expected >= k).sum()) for k in range(3)]
    assert 0 < reached[2] < reached[1] < EXAMPLES  # some end at each exit
    for k, (name, scores) in enumerate(whole.items()):
        np.testing.assert_allclose(found.scores[expected == k], scores[expected == k], rtol=1e-5, atol=1e-5)
        assert found.shares[name] == np.mean(expected == k)
    # 4 bytes of each score of all examples; then of each feature, of those that go on, in whole batches
    device = 4 * CLASSES * batches(EXAMPLES) + 4 * FEATURES * batches(reached[1])
    assert [found.sent_bytes(f"device{k}") for k in range(DEVICES)] == [device] * DEVICES
    assert found.sent_bytes("edge") == 4 * (5 + CLASSES) * batches(reached[2])
    assert found.sent_bytes("cloud") == 0
    assert found.sent_bytes() == DEVICES * device + found.sent_bytes("edge")


def test_one_machine_ends_the_same_examples_and_a_batch_of_one_sends_what_the_formula_says(
    run: Run, views: dict[str, np.ndarray], whole: dict[str, np.ndarray]
) -> None:
    thresholds = {"local": 0.3, "edge": 1.0}
    expected = first_exits(whole, thresholds | {"edge": 2.0})
    alone = Run(partition(network(), Cluster.local(), batch=8), run.parameters)
    found = predict_with_exits(alone, views, thresholds=thresholds, hosts="inline")
    np.testing.assert_array_equal(found.exit, expected)
    assert found.sent_bytes() == 0
    few = {name: array[:9] for name, array in views.items()}
    single = predict_with_exits(Run(run.plan.with_batch(1), run.parameters), few, thresholds=thresholds)
    local = single.shares["local"]
    each = 4 * CLASSES + (1 - local) * FEATURES * 32 / 8
    assert 0 < local < 1
    assert single.sent_bytes("device1") / 9 == pytest.approx(each, rel=1e-12)


@pytest.mark.parametrize(("threshold", "expected"), [(0.0, 2), (1.0, 0)])
def test_0_ends_no_example_and_1_ends_all(
    run: Run, views: dict[str, np.ndarray], threshold: float, expected: int
) -> None:
    few = {name: array[:5] for name, array in views.items()}
    alone = Run(partition(network(), Cluster.local(), batch=8), run.parameters)
    found = predict_with_exits(alone, few, thresholds={"local": threshold, "edge": threshold}, hosts="inline")
    assert (found.exit == expected).all()


def test_normalised_entropy_equals_scipys() -> None:
    scores = np.random.default_rng(1).normal(size=(50, 7)) * np.logspace(-3, 3, 50)[:, None]
    expected = entropy_of(softmax(scores, axis=1), axis=1) / math.log(7)
    np.testing.assert_allclose(normalised_entropy(scores), expected, rtol=1e-10, atol=1e-14)


def test_thresholds_give_the_wanted_shares_and_the_least_exit_of_the_wanted_accuracy(
    run: Run, views: dict[str, np.ndarray], whole: dict[str, np.ndarray]
) -> None:
    alone = Run(partition(network(), Cluster.local(), batch=8), run.parameters)
    labels = whole["cloud"].argmax(axis=1)
    by_share = choose_thresholds(alone, views, labels, shares={"local": 0.5, "edge": 0.25}, hosts="inline")
    ends = first_exits(whole, by_share)
    assert [int((ends == k).sum()) for k in range(2)] == [13, 6]  # of 26: a half, and round(6.5)
    found = choose_thresholds(alone, views, labels, accuracy=0.9, hosts="inline")
    chosen = np.array([one.argmax(axis=1) for one in whole.values()])

    def figures(thresholds: dict[str, float]) -> tuple[float, float]:
        at = first_exits(whole, {n: 2.0 if t == 1 else t for n, t in thresholds.items()})
        return float(np.mean(chosen[at, np.arange(EXAMPLES)] == labels)), float(at.mean())

    accuracy, passed = figures(found)
    assert accuracy >= 0.9
    for local in np.linspace(0, 1, 21):
        for edge in np.linspace(0, 1, 21):
            other = figures({"local": float(local), "edge": float(edge)})
            assert other[0] < 0.9 or other[1] >= passed
    with pytest.raises(ValueError, match=r"no thresholds reach an accuracy of 0.9 .* ask for less"):
        choose_thresholds(alone, views, labels - CLASSES, accuracy=0.9, hosts="inline")


def test_joint_training_has_the_gradient_of_the_weighted_losses(
    run: Run, views: dict[str, np.ndarray]
) -> None:
    batch = {name: array[:8] for name, array in views.items()} | {"label": np.arange(8) % CLASSES}
    found = []
    plain = network(weight=0.3)
    for scores in ENDS.values():
        end = SymbolicTensor(plain, scores)
        plain.loss = (*plain.loss, SoftmaxCrossEntropy()(end, SymbolicTensor(plain, "label")))
    plain.loss_weights = (0.0, 0.0, 0.0, 0.3, 1.0, 1.0)
    for net in (network(weight=0.3), plain):
        plan = partition(net, Cluster.local(), batch=8)
        with Session(plan, run.parameters, train=True, hosts="inline") as session:
            found.append(session.step(batch, collect=("gradient",)))
    ours, theirs = found
    assert ours.loss == pytest.approx(theirs.loss, rel=1e-6)
    for name, gradient in ours.vectors["gradient"].items():
        np.testing.assert_allclose(gradient, theirs.vectors["gradient"][name], rtol=1e-4, atol=1e-6)
    assert ours.vectors["gradient"]["deep.weight"].any()


def without_device_1() -> Network:
    """What is left, declared: the maximum and the mean of two, and zeros in the concatenation."""
    net = Network("devices")
    features = {k: feature(net, k) for k in (0, 2)}
    scores = [Dense(CLASSES, name=f"scores{k}")(one) for k, one in features.items()]
    local = Maximum(name="local_scores")(*scores)
    zeros = net.input("zeros", shape=FEATURES)
    mean = Average(name="mean")(*features.values())
    joined = Concatenate(name="joined")(features[0], zeros, features[2], mean)
    hidden = Dense(5, activation="tanh", name="hidden")(joined)
    Dense(CLASSES, name="edge_scores")(hidden)
    cloud = Dense(7, activation="tanh", name="deep")(Concatenate(name="both")(hidden, local))
    Dense(CLASSES, name="cloud_scores")(cloud)
    return net


@pytest.fixture(scope="module")
def left(run: Run, views: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The scores at the edge and in the cloud without device 1."""
    plan = partition(without_device_1(), Cluster.local(), batch=8)
    zeros = np.zeros((EXAMPLES, FEATURES), np.float32)
    given = {"view0": views["view0"], "view2": views["view2"], "zeros": zeros}
    found = predict(Run(plan, run.parameters), given, hosts="inline")
    assert isinstance(found, dict)
    return found


def test_others_go_on_without_a_device(
    run: Run, views: dict[str, np.ndarray], left: dict[str, np.ndarray]
) -> None:
    thresholds = {"local": 0.0, "edge": 0.3}
    found = predict_with_exits(run, views, thresholds=thresholds, without=["device1"])
    ends = first_exits({name: left[ENDS[name]] for name in ("edge", "cloud")}, {"edge": 0.3}) + 1
    np.testing.assert_array_equal(found.exit, ends)
    for k, name in ((1, "edge"), (2, "cloud")):
        np.testing.assert_allclose(found.scores[ends == k], left[ENDS[name]][ends == k], rtol=1e-5, atol=1e-5)
    assert found.lost == ("device1",)
    assert found.sent_bytes("device1") == 0
    without_cloud = predict_with_exits(run, views, without=["cloud"])
    assert without_cloud.shares["cloud"] == 0
    with pytest.raises(ValueError, match=r"without machine 'edge' nothing is left: .*; join"):
        predict_with_exits(run, views, without=["edge"])


def lose_in_step(number: int, lose: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls a function before the step of this number of a first session."""
    play, steps = ExitSession._stage, []

    def stage(session: ExitSession, *given: Any) -> Any:
        steps.append(given)
        if len(steps) == number:
            lose(session)
        return play(session, *given)

    monkeypatch.setattr(ExitSession, "_stage", stage)


def check_lost(
    run: Run,
    views: dict[str, np.ndarray],
    left: dict[str, np.ndarray],
    whole: dict[str, np.ndarray],
    **on: Any,
) -> None:
    found = predict_with_exits(run, views, thresholds={"local": 0.0, "edge": 1.0}, **on)
    assert found.lost == ("device1",)
    before = np.isclose(found.scores, whole["edge"], rtol=1e-5, atol=1e-5).all(axis=1)
    after = np.isclose(found.scores, left["edge_scores"], rtol=1e-5, atol=1e-5).all(axis=1)
    assert (before | after).all()
    assert before[:BATCH].all()
    assert after[-BATCH:].all()


def test_a_device_lost_in_mid_run_is_left_out_from_then_on(
    run: Run,
    views: dict[str, np.ndarray],
    left: dict[str, np.ndarray],
    whole: dict[str, np.ndarray],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lose(session: ExitSession) -> None:
        raise HostError("part 0.1", "its machine is gone")

    lose_in_step(6, lose, monkeypatch)
    check_lost(run, views, left, whole)


@pytest.mark.slow
def test_a_killed_device_is_left_out_from_then_on(
    run: Run,
    views: dict[str, np.ndarray],
    left: dict[str, np.ndarray],
    whole: dict[str, np.ndarray],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lose(session: ExitSession) -> None:
        os.kill(session.launcher.pid("part 0.1"), signal.SIGKILL)  # type: ignore[attr-defined]

    lose_in_step(6, lose, monkeypatch)
    check_lost(run, views, left, whole, hosts="processes")


def test_a_failure_of_a_machine_that_all_need_is_raised(
    run: Run, views: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(session: ExitSession) -> None:
        raise HostError("part 0.3", "its machine is gone")

    lose_in_step(2, lose, monkeypatch)
    with pytest.raises(HostError, match="its machine is gone"):
        predict_with_exits(run, views)


def test_cut_layers_are_played_in_stages_too(
    run: Run, views: dict[str, np.ndarray], whole: dict[str, np.ndarray]
) -> None:
    layers = [grid.name for grid in network().graph().computed if not isinstance(grid.layer, Exit)]
    cuts = {name: RowSplit(2) for name in layers}
    plan = partition(network(), Cluster.local(2), batch=BATCH, cuts=cuts)
    found = predict_with_exits(Run(plan, run.parameters), views)
    np.testing.assert_array_equal(found.exit, first_exits(whole, {"local": 0.3, "edge": 0.3}))


def test_an_architecture_keeps_its_exits_and_a_summary_says_them() -> None:
    net = network(weight=0.25)
    again = Network.from_json(net.to_json())
    assert again.graph() == net.graph()
    layer = again.graph()["local"].layer
    assert isinstance(layer, Exit)
    assert (layer.threshold, layer.loss_weight) == (0.3, 0.25)
    assert "local ends examples by the normalised entropy of their scores, below 0.3" in str(net.summary())


def test_mistakes_are_answered(run: Run, views: dict[str, np.ndarray]) -> None:
    net = Network("plain")
    scores = Dense(3, name="scores")(net.input("x", shape=4))
    with pytest.raises(ValueError, match=r"the threshold is 2; write a number from 0 .* to 1"):
        net.exit(scores, threshold=2)
    with pytest.raises(ValueError, match=r"an example ends as a whole; give it a row of scores"):
        net.exit(net.input("pair", shape=(2, 3)))
    tiled = partition(pictures(), Cluster.local(2), batch=2, cuts={"conv": Tiles(2, across=(1, 2))})
    with pytest.raises(ValueError, match=r"exits need a plan without tiles, and conv are cut"):
        predict_with_exits(Run(tiled, {}), {})
    with pytest.raises(
        ValueError, match=r"there is no exit 'lokal' in network 'devices'; it has local, edge"
    ):
        predict_with_exits(run, views, thresholds={"lokal": 0.5})
    with pytest.raises(ValueError, match=r"there is no machine 'device9' to do without; there are device0"):
        predict_with_exits(run, views, without=["device9"])
    with pytest.raises(ValueError, match=r"either accuracy=0.95 or shares="):
        choose_thresholds(run, views, [0])
    with pytest.raises(ValueError, match=r"give one of 0 or more for each of local, edge"):
        choose_thresholds(run, views, [0] * EXAMPLES, shares={"local": 0.5})


def test_an_exit_has_the_target_of_the_one_before() -> None:
    net = Network("targets")
    x = net.input("x", shape=8)
    first, second = net.target("first"), net.target("second")
    net.exit(Dense(4)(x), first, name="one")
    net.exit(Dense(4)(x), second, name="two")
    net.exit(Dense(4)(x), name="three")
    assert net.graph()["three"].sources[1] == "second"
