"""Measuring products: which library wins, when none is measured, and that what is asked for is computed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest

from partita.engine.profile import products
from partita.engine.profile.asked import asked_of
from partita.engine.profile.kernel_benchmark import BenchmarkPart, KernelBenchmark
from partita.engine.profile.products import (
    ROUNDS,
    busy,
    chosen_of,
    measure_product,
    rounds,
)
from partita.layers import Dense, Network, SoftmaxCrossEntropy
from partita.partitioner import Choice, Cluster, InputSplit, Products, ProductShape, RowSplit, partition
from partita.partitioner.cluster.products import LARGE

USUAL, OTHER, THIRD = Choice("torch", 2), Choice("tiles", 2), Choice("numpy", 1)
EVEN = [1.0] * ROUNDS


@pytest.mark.parametrize(
    ("other", "third", "chosen"),
    [
        ([1.0] * ROUNDS, [1.0] * ROUNDS, USUAL),
        ([0.96] * ROUNDS, [1.1] * ROUNDS, USUAL),  # not by the margin
        ([0.94] * ROUNDS, [1.1] * ROUNDS, OTHER),
        ([0.94] * ROUNDS, [0.9] * ROUNDS, THIRD),
        ([0.5] * (ROUNDS - 1) + [0.96], [1.1] * ROUNDS, USUAL),  # not in every round
        ([0.5] * (ROUNDS - 1) + [0.96], [0.9] * ROUNDS, THIRD),
    ],
)
def test_another_library_must_win_every_round_by_a_margin(
    other: list[float], third: list[float], chosen: Choice
) -> None:
    assert chosen_of({USUAL: EVEN, OTHER: other, THIRD: third}, USUAL) == chosen


def test_rounds_that_are_far_apart_say_nothing() -> None:
    assert chosen_of({USUAL: [1.0] * (ROUNDS - 1) + [1.3], OTHER: [0.1] * ROUNDS}, USUAL) is None


class Watch:
    """A clock that advances while a product is computed."""

    def __init__(self) -> None:
        self.now, self.rests = 0.0, []

    def __call__(self) -> float:
        return self.now

    def rest(self, seconds: float) -> None:
        self.rests.append(seconds)

    def taking(self, seconds: float) -> Callable[[], None]:
        def call() -> None:
            self.now += seconds

        return call


def test_choices_take_turns_and_the_quickest_call_of_each_round_counts() -> None:
    watch = Watch()
    calls = {USUAL: watch.taking(0.001), THIRD: watch.taking(0.1)}
    found = rounds(calls, clock=watch, before=lambda choice: watch.rest(choice.threads))
    np.testing.assert_allclose(found[USUAL], [0.001] * ROUNDS)
    np.testing.assert_allclose(found[THIRD], [0.1] * ROUNDS)
    assert watch.rests == [2, 1] * ROUNDS


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("layout", ["NN", "TN", "NT"])
def test_a_product_is_measured_by_every_library_on_one_thread_and_on_all(layout: str, precision: str) -> None:
    shape = ProductShape(120, 130, 110, layout, precision, 2)
    ticks = iter(range(1_000_000))
    found = measure_product(shape, USUAL, clock=lambda: float(next(ticks)), rest=lambda seconds: None)
    assert found is not None and found.choice == USUAL  # all took as long
    libraries = {(choice.library, choice.threads) for choice, _ in found.seconds}
    assert libraries == {(name, n) for name in ("numpy", "tiles", "flat tiles", "torch") for n in (1, 2)}


def test_libraries_that_do_not_agree_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    right = products.product_by

    def wrong(choice: Choice, *arrays: object, **more: object) -> Callable[[], None]:
        call, out = right(choice, *arrays, **more), arrays[2]  # type: ignore[arg-type]

        def called() -> None:
            call()
            assert isinstance(out, np.ndarray)
            out[3, 5] += 1e-3 * (choice.library == "tiles")

        return called

    monkeypatch.setattr(products, "product_by", wrong)
    with pytest.raises(
        ArithmeticError, match="torch and tiles do not agree on the product 64x40x32 NN float32"
    ):
        measure_product(ProductShape(64, 40, 32, "NN", "float32", 1), Choice("torch", 1))


BUSY = "while True: pass"


def test_a_busy_machine_is_reported_in_a_sentence() -> None:
    load = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(os.cpu_count() or 1)]
    try:
        sentence = busy(look_s=0.2)
    finally:
        for process in load:
            process.send_signal(signal.SIGKILL)
            process.wait()
    assert (
        sentence is not None and "cores" in sentence and sentence.endswith("calibrate again when it is quiet")
    )


@pytest.mark.parametrize("cut", [RowSplit(2), InputSplit(2), InputSplit(2, replicated=True)])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_calibration_asks_for_exactly_the_products_that_a_part_computes(
    cut: RowSplit | InputSplit, threads: int
) -> None:
    net = Network("large")
    hidden = Dense(400, activation="tanh", name="hidden")(net.input("x", shape=300))
    middle = Dense(300, activation="tanh", name="middle")(hidden)
    net.loss = SoftmaxCrossEntropy()(Dense(10, name="scores")(middle), net.target("y"))
    plan = partition(net, Cluster.local(2, threads=threads), batch=64, cuts={"hidden": cut, "middle": cut})
    for machine in range(2):
        watched = Watched()
        part = BenchmarkPart(plan, machine)
        KernelBenchmark(BenchmarkPart(plan.multiplying_by(watched), machine)).close()
        expected = {shape for shape in watched.asked if shape.operations >= LARGE}
        assert asked_of(part).products == expected and expected
        assert max(shape.threads for shape in expected) == threads


class Watched(Products):
    """Remembers what kernels ask for."""

    def __init__(self) -> None:
        super().__init__()
        object.__setattr__(self, "asked", set())

    asked: set[ProductShape]

    def choose(self, shape: ProductShape) -> Choice:
        self.asked.add(shape)
        return super().choose(shape)
