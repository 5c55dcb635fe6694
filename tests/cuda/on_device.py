"""Plays the cases of `tests/kernels` on another device: what they hand to a kernel goes there, and comes back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import torch

from partita.engine.kernels import Array, Arrays, Call, Kernel, LossKernel, Site, Team
from partita.engine.kernels import build as build_kernel
from partita.engine.kernels.cuda.tensors import array_of, numbers_of, on_host, tensor_of
from partita.layers import Loss
from partita.layers.rows import Rows


@contextmanager
def on_device(device: torch.device, *modules: Any) -> Iterator[None]:
    """Meanwhile, these modules of tests build kernels there."""

    def build(site: Site, arrays: Arrays, team: Team | None = None) -> Kernel:
        kind = HostedLoss if isinstance(site.grid.layer, Loss) else Hosted
        return kind(site, arrays, team or Team(), device)

    with mock.patch.multiple("tests.kernels.cases", build=build):
        patches = [mock.patch.object(module, "build", build) for module in modules if hasattr(module, "build")]
        for patch in patches:
            patch.start()
        try:
            yield
        finally:
            for patch in patches:
                patch.stop()


class Hosted(Kernel):
    """A kernel on a device, for arrays of the host: they are taken there before each call, and back after."""

    def __init__(self, site: Site, arrays: Arrays, team: Team, device: torch.device) -> None:
        super().__init__(site, arrays, team)
        self._device, self._pairs = device, list[tuple[Array, torch.Tensor]]()
        there = Arrays(
            sources=tuple(map(self._taken, arrays.sources)),
            state=self._taken(arrays.state),
            delta=None if arrays.delta is None else self._taken(arrays.delta),
            errors=tuple(None if errors is None else self._taken(errors) for errors in arrays.errors),
            parameters=tuple(map(self._taken, arrays.parameters)),
            summaries=None if arrays.summaries is None else self._taken(arrays.summaries),
        )
        self.kernel = build_kernel(replace(site, device=str(device).replace("cpu", "cuda:0")), there, team)
        self.gradient_by_rows = self.kernel.gradient_by_rows

    @property
    def gradient_dtype(self) -> Any:
        return self.kernel.gradient_dtype

    def up(self, *, block: tuple[int, int] | None = None, first: bool = True, last: bool = True) -> Call:
        return self._around(self.kernel.up(block=block, first=first, last=last))

    def delta(self) -> Call:
        return self._around(self.kernel.delta())

    def errors(self, source: int, rows: Rows, *, accumulate: bool) -> Call:
        return self._around(self.kernel.errors(source, rows, accumulate=accumulate))

    def gradient(self, out: Sequence[Array], rows: tuple[int, int] | None = None) -> Call:
        return self._around(self.kernel.gradient([self._taken(array) for array in out], rows))

    def _taken(self, array: Array) -> Array:
        tensor = on_host(array).to(self._device, copy=True)
        self._pairs.append((array, tensor))
        return array_of(tensor)

    def _around(self, call: Call) -> Call:
        def around() -> None:
            for array, tensor in self._pairs:
                tensor_of(array_of(tensor)).copy_(on_host(array))
            call()
            for array, tensor in self._pairs:
                array[...] = numbers_of(tensor.cpu())

        return around


class HostedLoss(Hosted, LossKernel):
    """The same for a loss."""

    def summarise(self, piece: int) -> Call:
        assert isinstance(self.kernel, LossKernel)
        return self._around(self.kernel.summarise(piece))

    def metrics(self, count: int) -> tuple[float, int]:
        assert isinstance(self.kernel, LossKernel)
        return self.kernel.metrics(count)


Test = Callable[..., None]
