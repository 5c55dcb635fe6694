"""Opens the device of a machine: the one place that knows all kinds of them."""

from __future__ import annotations

from partita.engine.runtime.devices import Device
from partita.partitioner.cluster.cluster import Machine


def open_device(machine: Machine) -> Device:
    """The device on which a machine of a cluster computes.

    Raises:
        NoSuchDevice: this host does not have it.
    """
    if machine.device == "cpu":
        return Device()
    from partita.engine.runtime.torch_device import open_torch  # here, because it imports torch

    return open_torch(machine)
