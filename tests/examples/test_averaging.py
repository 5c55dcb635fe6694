"""The examples of averaging: their players do what the drivers' arithmetic says."""

from __future__ import annotations

import numpy as np

from examples.reproduce import parameter_averaging
from examples.reproduce.dynamic_averaging import LEARNERS, RATE, Learners, Stream
from partita.engine import SGD, AllReduce, DynamicAveraging, LocalSGD
from partita.engine.drivers import Driver

STEPS = 20


def learners(driver: Driver) -> Learners:
    found = Learners(driver, Stream("01", 0, STEPS), 0)
    found.play()
    return found


def test_a_delta_that_all_violate_is_averaging_in_every_step() -> None:
    always = learners(LocalSGD(replicas=LEARNERS, every=1, optimizer=RATE))
    never_near = learners(DynamicAveraging(replicas=LEARNERS, every=1, delta=1e-12, optimizer=RATE))
    np.testing.assert_allclose(never_near.losses, always.losses, rtol=1e-4)
    assert always.losses[STEPS // 2 - 1] < always.losses[0] < 2 * always.losses[STEPS // 2], (
        "the labels change"
    )
    size = 64 * 32 + 32 + 32 * 10 + 10
    np.testing.assert_array_equal(always.n_bytes, 2 * (LEARNERS - 1) * 4 * size)
    np.testing.assert_array_equal(never_near.n_bytes - always.n_bytes, 2 * (LEARNERS - 1) * 8 * LEARNERS)
    few = learners(DynamicAveraging(replicas=LEARNERS, every=1, delta=1.0, optimizer=RATE))
    assert few.n_bytes.sum() < always.n_bytes.sum() / 2


def test_averaging_in_every_step_is_synchronous_sgd() -> None:
    both = AllReduce(replicas=3, optimizer=SGD(0.4)), LocalSGD(replicas=3, every=1, optimizer=SGD(0.4))
    one, other = (parameter_averaging.after_steps(driver, 8) for driver in both)
    np.testing.assert_allclose(one, other, atol=1e-5)
