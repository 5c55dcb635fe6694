"""Devices: a missing one is reported; tensors are copied through separate host memory."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from partita.engine import HostError, Session
from partita.engine.numerics import downcast_array, upcast_array
from partita.engine.parameters import initialise
from partita.engine.runtime.devices import Device
from partita.engine.runtime.torch_device import TorchDevice
from partita.layers import BoxSet
from partita.partitioner import Cluster, Machine, partition
from tests.faults import toy
from tests.on_torch.on_device import DEVICES, tensors_at

BITS = downcast_array(np.array([1.0, -2.5, 1e30], np.float32), np.zeros(3, np.uint16))
KINDS = [np.dtype(kind) for kind in (np.float32, np.float64, np.uint16, np.int64)]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> TorchDevice:
    return TorchDevice(tensors_at(request.param))


@pytest.mark.parametrize("hosts", ["threads", "inline"])
def test_a_host_without_the_device_says_so_at_its_start(hosts: str) -> None:
    there = torch.cuda.device_count()
    cluster = Cluster((Machine("gpu", device=f"cuda:{there}"),))
    plan = partition(toy.network(), cluster, batch=4, strategy="balanced")
    parameters = initialise(plan.graph.parameters.values(), 1)
    with pytest.raises(HostError, match=rf"'gpu' wants cuda:{there}, but this host has .* another device"):
        Session(plan, parameters, hosts=hosts)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_numbers_come_back_as_they_went(device: TorchDevice, kind: np.dtype) -> None:  # type: ignore[type-arg]
    array = np.arange(24).reshape(2, 3, 4).astype(kind)
    taken = device.taken(array)
    assert isinstance(taken, torch.Tensor)
    array[...] = 0
    found = device.given(taken)
    assert found.dtype == kind
    assert found.ravel().tolist() == list(range(24))


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_window_has_one_array_for_kernels_and_one_for_messages(
    device: TorchDevice,
    kind: np.dtype,  # type: ignore[type-arg]
) -> None:
    memory = device.memory(64 + 5 * 2 * kind.itemsize)
    window = device.window(3, device.placed(memory, 64, (5, 2), kind))
    assert window.rows == (3, 8)
    rows = BoxSet.of_rows((3, 4), (5, 7))
    for n, run in enumerate(window.arriving(rows), start=1):
        run[...] = n
    before = device.given(window.array)
    assert not before.any(), "what was not uploaded has arrived"
    window.upload(rows)
    assert device.given(window.array)[:, 0].tolist() == [1, 0, 2, 2, 0]
    (here,) = window.arriving(BoxSet.of_rows((5, 6)))
    here[...] = 9
    (found,) = window.download(BoxSet.of_rows((5, 6)))
    assert found.tolist() == [[2, 2]]
    (there,) = window.of(BoxSet.of_rows((7, 8)))
    assert there.shape == (1, 2)


def test_arrays_are_added_copied_and_converted(device: TorchDevice) -> None:
    total, wide = device.taken(BITS.copy()), device.zeros((3,), np.dtype(np.float32))
    device.add(total, device.taken(BITS.copy()))
    device.copy(wide, total)
    assert device.given(wide).tolist() == (2 * upcast_array(BITS)).tolist()
    downcast = device.zeros((3,), np.dtype(np.uint16))
    device.copy(downcast, device.taken(upcast_array(BITS)))
    assert device.given(downcast).tolist() == BITS.tolist()
    place = device.zeros((1, 2), np.dtype(np.float64))
    place[0, 1] = device.sum_of_squares(device.taken(np.arange(4, dtype=np.float32)))
    assert device.given(place).tolist() == [[0, 14]]
    device.finish()


def test_who_has_no_gpu_imports_nothing_for_one() -> None:
    script = (
        "import sys, partita.engine, partita.engine.runtime.session, partita.engine.runtime.leased_hands; "
        "print({'torch'} & set(sys.modules))"
    )
    command = [sys.executable, "-c", script]
    child = subprocess.run(command, capture_output=True, text=True, check=True, timeout=280)
    assert child.stdout.strip() == "set()"


def test_a_cpu_copies_nothing() -> None:
    device, array = Device(), np.zeros((4, 2))
    window = device.window(1, array)
    rows = BoxSet.of_rows((2, 4))
    for runs in (window.of(rows), window.arriving(rows), window.download(rows)):
        assert np.shares_memory(runs[0], array)
    assert device.taken(array) is device.given(array) is array
