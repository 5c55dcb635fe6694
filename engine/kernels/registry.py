"""Which kernel plays which layer, on which device, in which precision. Adding one is a line here and a file
beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from partita.engine.kernels.convolution.kernel import Conv2DKernel
from partita.engine.kernels.dense import dense_kernel
from partita.engine.kernels.elementwise import ActivationKernel, AddKernel
from partita.engine.kernels.kernel import Arrays, Kernel, KernelContext
from partita.engine.kernels.local import LocallyConnectedKernel
from partita.engine.kernels.losses import (
    LogisticCrossEntropyKernel,
    OneAgainstAllKernel,
    SoftmaxCrossEntropyKernel,
    SquaredErrorKernel,
)
from partita.engine.kernels.node import NodeKernel
from partita.engine.kernels.normalisation import LocalContrastNormalisationKernel
from partita.engine.kernels.pooling import AveragePoolKernel, L2PoolKernel, MaxPoolKernel
from partita.engine.kernels.thread_pool import ThreadPool
from partita.engine.kernels.upcast import UpcastKernel
from partita.layers import (
    Activation,
    Add,
    AveragePool2D,
    BinaryCrossEntropy,
    Conv2D,
    Dense,
    HalfSquaredError,
    L2Pool2D,
    Layer,
    LocalContrastNormalisation2D,
    LocallyConnected2D,
    MaxPool2D,
    OneVsRest,
    SoftmaxCrossEntropy,
)

Maker: TypeAlias = Callable[[KernelContext, Arrays, ThreadPool], Kernel]

FLOATS = ("float32", "float64")
ALL = (*FLOATS, "bfloat16")

LINES: tuple[tuple[type[Layer], str, tuple[str, ...], Maker], ...] = (
    (Activation, "cpu", ALL, ActivationKernel),
    (Add, "cpu", FLOATS, AddKernel),
    (AveragePool2D, "cpu", FLOATS, AveragePoolKernel),
    (Conv2D, "cpu", ALL, Conv2DKernel),
    (Dense, "cpu", ALL, dense_kernel),
    (L2Pool2D, "cpu", FLOATS, L2PoolKernel),
    (LocalContrastNormalisation2D, "cpu", ALL, LocalContrastNormalisationKernel),
    (LocallyConnected2D, "cpu", ALL, LocallyConnectedKernel),
    (BinaryCrossEntropy, "cpu", ALL, LogisticCrossEntropyKernel),
    (MaxPool2D, "cpu", FLOATS, MaxPoolKernel),
    (OneVsRest, "cpu", ALL, OneAgainstAllKernel),
    (SoftmaxCrossEntropy, "cpu", ALL, SoftmaxCrossEntropyKernel),
    (HalfSquaredError, "cpu", ALL, SquaredErrorKernel),
)
"""Layer, device, precisions and kernel."""

_KERNELS: dict[tuple[type[Layer], str, str], Maker] = {
    (layer, device, precision): maker
    for layer, device, precisions, maker in LINES
    for precision in precisions
}


def build(context: KernelContext, arrays: Arrays, pool: ThreadPool | None = None) -> Kernel:
    """The kernel that plays a layer in a context, compiled and ready: no step waits for a compiler.

    A layer that is not in the table (a `Node`, a user's own class) is played by its node definition. A
    subclass of a layer in the table counts as a layer of its own, because its arithmetic may differ. Where a
    layer has no kernel in bfloat16, that of float32 plays it on upcast copies.

    Args:
        context: where it works.
        arrays: what it works on.
        pool: threads that kernels share; by default a team of the kernel's own, of `context.threads`.

    Raises:
        ValueError: the layer has no kernel and no definition, or its definition cannot be compiled.
    """
    return _maker(context)(context, arrays, pool or ThreadPool(context.threads))


def _maker(context: KernelContext) -> Maker:
    layer, device = context.grid.layer, context.device.partition(":")[0]
    if device == "cuda":
        from partita.engine.kernels.cuda import table  # here, because it imports torch

        return table.maker(context)
    found = _KERNELS.get((type(layer), device, context.precision))
    if found is not None:
        return found
    wide = _KERNELS.get((type(layer), device, "float32"))
    if context.precision == "bfloat16" and wide is not None:
        return partial(UpcastKernel, wide)
    reason = _unplayable(context)
    if reason is None:
        return NodeKernel
    raise ValueError(
        f"{context.label} has no kernel, and {reason}; add a kernel to "
        "partita.engine.kernels.registry, or give the layer a definition and one input"
    )


def _unplayable(context: KernelContext) -> str | None:
    """Why a layer cannot be played by its node definition, if so."""
    if context.grid.layer.definition is None:
        return "has no node definition"
    return f"listens to {len(context.sources)} inputs" if len(context.sources) > 1 else None
