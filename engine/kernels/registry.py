"""The kernels of all layers, and the choice among them by layer, device and precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from partita.engine.kernels.batch_norm import BatchNormKernel
from partita.engine.kernels.convolution.kernel import Conv2DKernel
from partita.engine.kernels.dense import DenseKernel
from partita.engine.kernels.dropout import DropoutKernel
from partita.engine.kernels.elementwise import ActivationKernel, AddKernel
from partita.engine.kernels.kernel import Arrays, Kernel, KernelContext
from partita.engine.kernels.layer_norm import LayerNormKernel
from partita.engine.kernels.linear import LinearKernel
from partita.engine.kernels.local import LocallyConnectedKernel
from partita.engine.kernels.losses import ExitKernel, SoftmaxCrossEntropyKernel
from partita.engine.kernels.node import NodeKernel
from partita.engine.kernels.normalisation import LocalContrastNormalisationKernel
from partita.engine.kernels.parts import SliceKernel
from partita.engine.kernels.pooling import AveragePoolKernel, L2PoolKernel, MaxPoolKernel
from partita.engine.kernels.position_losses import PositionCrossEntropyKernel
from partita.engine.kernels.thread_pool import ThreadPool
from partita.engine.kernels.torch_activation import TorchActivationKernel
from partita.layers import Loss

Maker: TypeAlias = Callable[[KernelContext, Arrays, ThreadPool], Kernel]

KERNELS: Final[tuple[type[Kernel], ...]] = (
    ActivationKernel,
    AddKernel,
    AveragePoolKernel,
    BatchNormKernel,
    Conv2DKernel,
    DenseKernel,
    DropoutKernel,
    ExitKernel,
    L2PoolKernel,
    LayerNormKernel,
    LinearKernel,
    LocalContrastNormalisationKernel,
    LocallyConnectedKernel,
    MaxPoolKernel,
    PositionCrossEntropyKernel,
    SliceKernel,
    SoftmaxCrossEntropyKernel,
    TorchActivationKernel,
)
"""The kernels of a CPU; each names its `layer`, and no two of a layer compute the same context."""


def build(context: KernelContext, arrays: Arrays, pool: ThreadPool | None = None) -> Kernel:
    """Builds the kernel of a layer, compiled and ready: no step waits for a compiler.

    A layer without a kernel, or whose kernel does not compute this context, runs by its `forward`, and else
    (a `Node`) by its node definition. A subclass of a layer with a kernel counts as a layer of its own,
    because its arithmetic may differ.

    Args:
        context: the part of the layer to compute, and how.
        arrays: what the kernel reads and writes.
        pool: threads that kernels share; by default a pool of the kernel's own, of `context.threads`.

    Raises:
        ValueError: the layer has no kernel and no definition, or its definition cannot be compiled.
    """
    return _maker(context)(
        context, arrays, pool or ThreadPool(context.threads, shares=context.products.threads)
    )


def _maker(context: KernelContext) -> Maker:
    layer = type(context.grid.layer)
    for kernel in KERNELS if context.device == "cpu" else ():
        if kernel.layer is layer and kernel.computes(context):
            return kernel.make
    form = _form(context)
    if form is not None:
        return form
    if context.grid.layer.definition is None:
        raise ValueError(
            f"{context.label} has no kernel, and has no node definition; write its `forward`, or give the "
            "layer a definition"
        )
    return NodeKernel


def _form(context: KernelContext) -> Maker | None:
    """The kernel of the layer's `forward`, if it has one; imports torch."""
    layer = context.grid.layer
    if not layer.has_forward:
        return None
    from partita.engine.kernels.convolution.by_filters import ConvolutionByFilters
    from partita.engine.kernels.layer_form import LayerFormKernel
    from partita.engine.kernels.loss_form import LossFormKernel
    from partita.engine.kernels.partial_form import PartialFormKernel

    if isinstance(layer, Loss):
        return LossFormKernel
    if context.device == "cpu" and ConvolutionByFilters.computes(context):
        return ConvolutionByFilters
    return LayerFormKernel if context.input_rows is None else PartialFormKernel
