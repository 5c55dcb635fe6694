"""Which kernel plays which layer on a GPU, in any precision: adding one is a line and a file beside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from partita.engine.kernels.cuda.convolution import Conv2DKernel
from partita.engine.kernels.cuda.dense import dense_kernel
from partita.engine.kernels.cuda.elementwise import ActivationKernel, AddKernel
from partita.engine.kernels.cuda.local import LocallyConnectedKernel
from partita.engine.kernels.cuda.losses import (
    LogisticCrossEntropyKernel,
    OneAgainstAllKernel,
    SoftmaxCrossEntropyKernel,
    SquaredErrorKernel,
)
from partita.engine.kernels.cuda.node import NodeKernel
from partita.engine.kernels.cuda.normalisation import LocalContrastNormalisationKernel
from partita.engine.kernels.cuda.pooling import AveragePoolKernel, L2PoolKernel, MaxPoolKernel
from partita.engine.kernels.cuda.tensors import TensorKernel
from partita.engine.kernels.kernel import Arrays, Kernel, KernelContext
from partita.engine.kernels.thread_pool import ThreadPool
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

KERNELS: Final[dict[type[Layer], Callable[[KernelContext, Arrays, ThreadPool], TensorKernel]]] = {
    Activation: ActivationKernel,
    Add: AddKernel,
    AveragePool2D: AveragePoolKernel,
    Conv2D: Conv2DKernel,
    Dense: dense_kernel,
    L2Pool2D: L2PoolKernel,
    LocalContrastNormalisation2D: LocalContrastNormalisationKernel,
    LocallyConnected2D: LocallyConnectedKernel,
    BinaryCrossEntropy: LogisticCrossEntropyKernel,
    MaxPool2D: MaxPoolKernel,
    OneVsRest: OneAgainstAllKernel,
    SoftmaxCrossEntropy: SoftmaxCrossEntropyKernel,
    HalfSquaredError: SquaredErrorKernel,
}


def maker(context: KernelContext) -> Callable[[KernelContext, Arrays, ThreadPool], Kernel]:
    """What makes the kernel of a site.

    Raises:
        ValueError: the layer has none on a GPU.
    """
    found = KERNELS.get(type(context.grid.layer))
    if found is not None:
        return found
    if context.grid.layer.definition is not None and len(context.sources) == 1:
        return NodeKernel
    raise ValueError(
        f"{context.label} has no kernel on {context.device}, and no definition of "
        "one input; add a kernel to partita.engine.kernels.cuda.table, or give the layer to a machine whose "
        "device is 'cpu'"
    )
