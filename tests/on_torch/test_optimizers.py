"""Optimizers on a device of torch: the arithmetic of a CPU's loops, on tensors, does what they do."""

from __future__ import annotations

import numpy as np
import pytest

from partita.engine import SGD, Optimizer
from partita.engine.numerics import downcast_array
from partita.engine.parameters import UpdateContext
from partita.engine.runtime.devices import Device
from partita.engine.runtime.torch_device import TorchDevice
from tests.on_torch.on_device import DEVICES, tensors_at
from tests.on_torch.optimizers import OPTIMIZERS

N = 11


def device_of(name: str) -> Device:
    return TorchDevice(tensors_at(name))


class Numbers:
    """Everything that an update reads and writes, on a device."""

    def __init__(self, optimizer: Optimizer, device: Device, precision: str) -> None:
        draw, real = np.random.default_rng(0), "float64" if precision == "float64" else "float32"
        self.device = device
        self.values = device.taken(draw.normal(size=N).astype(real))
        self.state = {name: device.taken(vector) for name, vector in optimizer.state(N, real).items()}
        self.accumulated = device.zeros((N,), np.dtype(real))
        rounded = precision == "bfloat16"
        self.copy = device.zeros((N,), np.dtype(np.uint16)) if rounded else None
        self.gradient = device.zeros((N,), np.dtype(np.uint16 if rounded else real))
        self._draw, self._real = draw, real
        self.apply = device.bind(
            optimizer, self.values, self.gradient, self.state, accumulated=self.accumulated, copy=self.copy
        )

    def step(self, count: int, gradient: np.ndarray) -> None:
        given = gradient.astype(self._real)
        if self.copy is not None:
            given = downcast_array(given, np.zeros(N, np.uint16))
        self.device.copy(self.gradient, self.device.taken(given))
        assert self.apply(UpdateContext(count, 0.5))

    def all(self) -> list[np.ndarray]:
        arrays = [
            self.values,
            self.accumulated,
            *self.state.values(),
            *([] if self.copy is None else [self.copy]),
        ]
        return [self.device.given(array) for array in arrays]


@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=str)
@pytest.mark.parametrize("precision", ["float32", "float64", "bfloat16"])
def test_equals_the_loop_of_a_cpu(name: str, optimizer: Optimizer, precision: str) -> None:
    there, here = Numbers(optimizer, device_of(name), precision), Numbers(optimizer, Device(), precision)
    for count in range(3):
        gradient = np.random.default_rng(count).normal(size=N)
        there.step(count, gradient)
        here.step(count, gradient)
    for found, expected in zip(there.all(), here.all(), strict=True):
        if found.dtype == np.uint16:
            assert np.abs(found.astype(int) - expected.astype(int)).max() <= 1
        else:
            np.testing.assert_allclose(found, expected, rtol=1e-5 if found.dtype == np.float32 else 1e-13)


@pytest.mark.parametrize("name", DEVICES)
def test_a_gradient_that_is_not_finite_is_reported_once(name: str) -> None:
    device = device_of(name)
    numbers = Numbers(SGD(0.1), device, "float32")
    numbers.step(0, np.ones(N))
    assert device.updates_were_finite()
    bad = np.ones(N)
    bad[N - 1] = np.inf
    numbers.step(1, bad)
    assert not device.updates_were_finite()
    assert device.updates_were_finite()
