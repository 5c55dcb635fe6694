"""Training in float16: the loss scale of all parts, runs without one, resuming, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typing_extensions import override

from examples.reproduce import float16
from partita.engine import (
    LBFGS,
    SGD,
    Adam,
    AllReduce,
    Codistillation,
    Downpour,
    FedAvg,
    LocalSGD,
    LossScale,
    Run,
    Sandblaster,
    Session,
    evaluate,
    train,
)
from partita.engine.drivers.traffic import traffic
from partita.engine.parameters import initialise
from partita.engine.parameters.compression import Compressor, TopK
from partita.engine.protocol import actions as a
from partita.engine.protocol.loss_scale import ScaleState
from partita.engine.protocol.names import part_name
from partita.engine.protocol.views import Member
from partita.engine.runtime.buffers import layout_of
from partita.engine.runtime.joined_hands import shared_spans
from partita.layers import L2, BatchNorm, Dense, HalfSquaredError, Network, SoftmaxCrossEntropy
from partita.partitioner import Cluster, Plan, partition
from tests.drivers.conftest import WatchedThreads
from tests.faults import toy

HIGH = LossScale(start=2.0**23, double_after=5)
"""A scale with which the first steps of the toy network are not finite."""


def plan_of(machines: int = 1, *, precision: str = "float16", net: Network | None = None) -> Plan:
    cluster = Cluster.local(machines=machines)
    return partition(net or toy.network(), cluster, batch=8, precision=precision, strategy="balanced")


def trained(plan: Plan, driver: Any, *, epochs: int = 2, **given: Any) -> Run:
    return train(plan, toy.data(64), driver=driver, epochs=epochs, show="nothing", **given)


def first_parameters(plan: Plan) -> dict[str, Any]:
    return initialise(plan.graph.parameters.values(), 0, dtype="float32")


@dataclass(frozen=True)
class Skipping(AllReduce):
    """Leaves out the updates of some steps."""

    without: tuple[int, ...] = ()

    @override
    def replica(self, me: Member) -> a.Program:
        for step in me.steps():
            yield a.Compute(step)
            yield a.AllReduce(by=self.by)
            if step not in self.without:
                yield a.Apply(self.optimizer)
            yield a.SafePoint()


def test_a_state_follows_the_rule() -> None:
    scale = LossScale(start=8.0, double_after=2, least=2.0, most=16.0)
    state, seen = scale.first, []
    for finite in (True, True, True, True, False, False, True, False):
        state = scale.after(state, finite=finite)
        seen.append((state.scale, state.good, state.skipped))
    assert seen == [
        *((8.0, 1, 0), (16.0, 0, 0), (16.0, 1, 0), (16.0, 0, 0)),
        *((8.0, 0, 1), (4.0, 0, 2), (4.0, 1, 2), (2.0, 0, 3)),
    ]
    with pytest.raises(ArithmeticError, match="not finite with the least loss scale, 2, either"):
        scale.after(state, finite=False)
    assert str(ScaleState(65536.0, 3, 1)) == "loss scale 65,536; 1 step skipped"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"start": 3.0}, "LossScale's start is 3.0; write a power of two"),
        ({"least": 0.0}, "LossScale's least is 0.0"),
        ({"double_after": 0}, "LossScale's double_after is 0"),
        ({"most": 4.0}, "which is not between least=1.0 and most=4.0"),
    ],
)
def test_a_setting_out_of_range_is_refused(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        LossScale(**given)


def test_all_parts_skip_the_same_steps_and_do_the_others_as_in_float32(on_threads: object) -> None:
    """The scale is halved until a step is finite, and is never so high that another one is not."""
    plain = plan_of(precision="float32")
    start = first_parameters(plain)
    steady = LossScale(start=HIGH.start)
    run = trained(plan_of(2), AllReduce(replicas=2, optimizer=SGD(0.1), loss_scale=steady))
    assert run.loss_scale is not None and run.steps == (8, 8)
    skipped = run.loss_scale.skipped
    assert 0 < skipped < 8
    assert run.loss_scale == ScaleState(steady.start / 2**skipped, 8 - skipped, skipped)
    without = tuple(range(skipped))
    expected = trained(plain, Skipping(replicas=2, optimizer=SGD(0.1), without=without)).parameters
    for name, numbers in expected.items():
        moved = np.abs(numbers - start[name]).max()
        assert np.abs(run.parameters[name] - numbers).max() < 0.02 * moved, name


@dataclass(frozen=True)
class SkippingRounds(LocalSGD):
    """Leaves out the updates of some steps."""

    without: tuple[int, ...] = ()

    @override
    def local_steps(self, me: Member, steps: Iterator[int]) -> a.Program:
        for step in steps:
            yield a.Compute(step, alone=True)
            if step not in self.without:
                yield a.Apply(self.optimizer)
            yield a.SafePoint()


@pytest.mark.parametrize("compress", [None, TopK(1.0)], ids=str)
def test_replicas_that_compute_alone_have_a_scale_each(
    compress: Compressor | None, on_threads: list[WatchedThreads]
) -> None:
    """Its parts take one decision, and no other replica is asked. Each skips its first steps."""
    plain, plan = plan_of(precision="float32"), plan_of(2)
    start = first_parameters(plain)
    settings: dict[str, Any] = {"replicas": 2, "every": 4, "optimizer": SGD(0.1), "compress": compress}
    driver = LocalSGD(loss_scale=LossScale(start=HIGH.start), **settings)
    run = trained(plan, driver)
    assert run.loss_scale is not None and run.steps == (8, 8)
    skipped = run.loss_scale.skipped
    assert 0 < skipped < 8 and run.loss_scale.scale == HIGH.start / 2**skipped
    without = tuple(range(skipped))
    expected = trained(plain, SkippingRounds(without=without, **settings)).parameters
    for name, numbers in expected.items():
        moved = np.abs(numbers - start[name]).max()
        assert np.abs(run.parameters[name] - numbers).max() < 0.02 * moved, name
    spans = shared_spans(layout_of(plan, shards=1))
    for machine, (one,) in enumerate(spans):
        counters: Any = on_threads[0].boxes[part_name(0, machine)].counters
        sent = sum(counters.sent_of(kind).payload_bytes for kind in ("PartialChunk", "FinalChunk"))
        sizes = [whole.stop - whole.start for (whole,) in spans]
        run_of: dict[str, Any] = {"examples": 64, "batch": 8, "epochs": 2, "sizes": sizes}
        formula = traffic(driver, machine=machine, shapes=one.tensors, **run_of)
        assert sent == formula.n_bytes


@pytest.mark.parametrize("sharded", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_run_that_goes_on_has_the_bits_and_the_scale_of_one(
    tmp_path: Path, on_threads: object, sharded: bool
) -> None:
    driver = AllReduce(replicas=2, optimizer=Adam(0.01), loss_scale=HIGH, shard_optimizer=sharded)
    whole = trained(plan_of(), driver, epochs=5)
    trained(plan_of(), driver, epochs=3, checkpoints=tmp_path)
    run = trained(plan_of(), driver, epochs=5, checkpoints=tmp_path, resume=True)
    assert run.loss_scale == whole.loss_scale and whole.loss_scale is not None
    assert whole.loss_scale.skipped > 2, "the scale has grown again"
    for name, numbers in whole.parameters.items():
        assert run.parameters[name].tobytes() == numbers.tobytes(), name


def test_activations_and_gradients_take_half_the_bytes() -> None:
    """Labels (int64) and the losses' sums (float32) are as long as before."""

    def sent(precision: str) -> int:
        data = toy.data(8)
        with Session(plan_of(2, precision=precision), 0, train=True, hosts="threads") as session:
            return sum(part.n_bytes for part in session.step(data).sent)

    whole, half, same = sent("float32"), sent("float16"), sent("bfloat16")
    assert half == same < whole
    plans = [plan_of(2, precision=precision) for precision in ("float32", "float16")]
    assert [sum(plan.traffic_bytes[0]) for plan in plans] == [whole, half]


def test_without_a_scale_small_gradients_change_nothing(on_threads: object) -> None:
    net = Network("small")
    scores = Dense(3, name="scores")(net.input("picture", shape=(8,)))
    net.loss = SoftmaxCrossEntropy(loss_weight=1e-7)(scores, net.target("digit"))
    plan = plan_of(net=net)
    start, moved = first_parameters(plan), []
    for scale in (LossScale(start=1.0, most=1.0), LossScale()):
        run = trained(plan, AllReduce(optimizer=SGD(1e6), loss_scale=scale))
        moved.append(sum(np.abs(numbers - start[name]).sum() for name, numbers in run.parameters.items()))
        assert run.loss_scale is not None and run.loss_scale.skipped == 0
    assert moved[0] == 0.0 and moved[1] > 0.1


@pytest.mark.slow
def test_without_a_scale_training_fails() -> None:
    """The example with fewer epochs."""
    found = {
        case: float16.trained(case, 0, machines=1, epochs=2)[1]
        for case in ("float32", "float16", "float16, no scale")
    }
    assert abs(found["float16"] - found["float32"]) < 0.03 and found["float32"] > 0.8
    assert found["float16, no scale"] < 0.3


def regularised() -> Network:
    net = Network("regularised")
    scores = Dense(3, regulariser=L2(0.1), name="scores")(net.input("picture", shape=(8,)))
    net.loss = HalfSquaredError()(scores, net.target("y"))
    return net


def normalised() -> Network:
    net = Network("normalised")
    scores = Dense(3, name="scores")(BatchNorm(name="norm")(net.input("picture", shape=(8,))))
    net.loss = HalfSquaredError()(scores, net.target("y"))
    return net


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (
            lambda: trained(plan_of(), Downpour()),
            "Downpour does not scale losses, .* train with AllReduce, LocalSGD or DiLoCo, or ",
        ),
        (
            lambda: trained(plan_of(), Codistillation(replicas=2)),
            "Codistillation does not scale losses, .* train with AllReduce, LocalSGD or DiLoCo, or ",
        ),
        (lambda: trained(plan_of(), FedAvg(rounds=1), epochs=None), "FedAvg does not scale losses"),  # type: ignore[arg-type]
        (
            lambda: LocalSGD(loss_scale=HIGH).fitted(plan_of(precision="bfloat16")),
            "LocalSGD has a loss_scale",
        ),
        (
            lambda: trained(plan_of(), Sandblaster(method=LBFGS()), epochs=None),  # type: ignore[arg-type]
            "Sandblaster does not scale losses",
        ),
        (lambda: AllReduce().fitted(plan_of(net=regularised())), "'scores.weight' has a regulariser"),
        (lambda: AllReduce().fitted(plan_of(net=normalised())), "is a running average, .* write GroupNorm"),
        (
            lambda: plan_of(net=toy.with_node(toy.fussy)),
            "'odd' is computed by its node definition, which has no",
        ),
        (
            lambda: AllReduce(loss_scale=LossScale()).fitted(plan_of(precision="bfloat16")),
            "has a loss_scale, and the plan computes in bfloat16",
        ),
        (
            lambda: Session(plan_of(), 0, train=True, optimizer=SGD(0.1), hosts="inline"),
            "a session does not scale losses",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(make: Callable[[], object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        make()


def test_a_network_is_evaluated_in_float16() -> None:
    plan = plan_of()
    run = Run(plan, first_parameters(plan))
    whole = Run(plan_of(precision="float64"), run.parameters)
    assert evaluate(run, toy.data(40)).loss == pytest.approx(evaluate(whole, toy.data(40)).loss, rel=2e-3)
