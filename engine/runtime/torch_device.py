"""A device of torch: arrays are tensors, copied from and to the host through pinned memory.

All work is put on one stream, so that it happens in the order in which the calls of a program were made. A
call returns when its work is on the stream; only a reader of numbers on the host waits. The import imports
torch.

The device "torch" has its tensors in the host's memory, apart from the arrays that messages use: everything
that a GPU does can be done, and tested, on any host.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from typing_extensions import override

from partita.engine.kernels.kernel import Array
from partita.engine.kernels.tensors import TYPES, array_of, as_tensor, numbers_of, on_host, tensor_of
from partita.engine.parameters.optimizers import Optimizer, Update
from partita.engine.parameters.optimizers.on_torch import bind_on_torch
from partita.engine.parameters.vector import Vector
from partita.engine.runtime.devices import Device, NoSuchDevice
from partita.engine.runtime.window import Window
from partita.layers.box import BoxSet
from partita.layers.text import counted
from partita.partitioner.cluster.cluster import Machine


def open_torch(machine: Machine) -> TorchDevice:
    """Opens the GPU of a machine, or the host's memory by torch.

    Sums are made reproducible and exact for the whole process: torch may otherwise choose TF32, and
    convolutions whose sums change from run to run.

    Raises:
        NoSuchDevice: this host does not have that GPU.
    """
    if machine.device == "torch":
        return TorchDevice(torch.device("cpu"))
    n_devices, index = torch.cuda.device_count(), int(machine.device.partition(":")[2])
    if index >= n_devices:
        what = counted(n_devices, "CUDA device") if n_devices else "no CUDA device"
        raise NoSuchDevice(
            f"machine '{machine.name}' wants {machine.device}, but this host has {what} that torch "
            f"{torch.__version__} can use; give the machine another device, for example 'cpu'"
        )
    products = torch.backends.cuda.matmul
    products.allow_tf32 = products.allow_bf16_reduced_precision_reduction = False
    torch.backends.cudnn.allow_tf32, torch.backends.cudnn.deterministic = False, True
    return TorchDevice(torch.device("cuda", index))


class TorchDevice(Device):
    """Arrays as tensors on a device of torch.

    Attributes:
        device: the device of torch.
    """

    blocks_fit_caches = False
    is_host = False
    works_in_calls = False

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._nonfinite: torch.Tensor | None = None

    @override
    def memory(self, n_bytes: int) -> Array:
        return array_of(torch.zeros(n_bytes, dtype=torch.uint8, device=self.device))

    @override
    def placed(self, memory: Array, offset: int, shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
        size = int(np.prod(shape)) * dtype.itemsize
        return array_of(tensor_of(memory)[offset : offset + size].view(TYPES[dtype]).reshape(tuple(shape)))

    @override
    def zeros(self, shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
        return array_of(torch.zeros(tuple(shape), dtype=TYPES[dtype], device=self.device))

    @override
    def window(self, start: int, array: Array, left: int = 0) -> Window:
        return StagedWindow(start, array, left)

    @override
    def taken(self, array: Array) -> Array:
        return array_of(on_host(array).to(self.device, copy=True))

    @override
    def given(self, array: Array) -> Array:
        return numbers_of(tensor_of(array).to("cpu", copy=True))

    @override
    def copy(self, target: Array, source: Array) -> None:
        tensor_of(target).copy_(tensor_of(source))

    @override
    def add(self, target: Array, other: Array) -> None:
        tensor_of(target).add_(tensor_of(other))

    @override
    def sum_of_squares(self, vector: Vector) -> Any:
        return torch.linalg.vector_norm(tensor_of(vector), dtype=torch.float64) ** 2

    def bind(
        self,
        optimizer: Optimizer,
        values: Vector,
        gradient: Array,
        state: Mapping[str, Vector],
        *,
        accumulated: Vector | None,
        copy: Array | None,
    ) -> Update:
        """See `Device`; a gradient that is not finite is flagged on the device, see `updates_were_finite`."""
        if self._nonfinite is None:
            self._nonfinite = torch.zeros(1, dtype=torch.bool, device=self.device)
        return bind_on_torch(
            optimizer,
            as_tensor(values),
            as_tensor(gradient),
            {name: as_tensor(vector) for name, vector in state.items()},
            accumulated=None if accumulated is None else as_tensor(accumulated),
            copy=None if copy is None else as_tensor(copy),
            nonfinite=self._nonfinite,
        )

    @override
    def updates_were_finite(self) -> bool:
        if self._nonfinite is None:
            return True
        found = bool(self._nonfinite.item())
        self._nonfinite.zero_()
        return not found

    @override
    def finish(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()


class StagedWindow(Window):
    """Rows of a buffer on a device, and pinned memory of the host through which they are copied."""

    def __init__(self, start: int, array: Array, left: int = 0) -> None:
        super().__init__(start, array, left)
        self._tensor = tensor_of(array)
        self._staging: torch.Tensor | None = None
        self._copied: torch.cuda.Event | None = None
        self._lock = threading.Lock()  # kernel threads feed while messages come and go

    @override
    def arriving(self, rows: BoxSet) -> list[Array]:
        self.wait()
        return [numbers_of(run) for run in self._runs(self._host, rows)]

    @override
    def wait(self) -> None:
        if self._copied is not None:
            self._copied.synchronize()

    @override
    def upload(self, rows: BoxSet) -> None:
        for run, source in zip(self._runs(self._tensor, rows), self._runs(self._host, rows), strict=True):
            run.copy_(source, non_blocking=True)
        self._begun()

    def download(self, rows: BoxSet) -> list[Array]:
        """See `Window`; waits until the numbers are on the host."""
        for run, source in zip(self._runs(self._host, rows), self._runs(self._tensor, rows), strict=True):
            run.copy_(source, non_blocking=True)
        self._begun()
        return self.arriving(rows)

    @property
    def _host(self) -> torch.Tensor:
        with self._lock:
            if self._staging is None:
                tensor = self._tensor
                self._staging = torch.zeros(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
            return self._staging

    def _runs(self, tensor: torch.Tensor, rows: BoxSet) -> list[torch.Tensor]:
        return [self.view(tensor, run) for run in rows]

    def _begun(self) -> None:
        """Records the copies that were put on the stream; later work there is done after them."""
        if self._tensor.is_cuda:
            with self._lock:
                event = torch.cuda.Event()  # type: ignore[no-untyped-call]
                event.record(torch.cuda.current_stream(self._tensor.device))
                self._copied = event
