"""The kernels of a GPU, in any precision, and the choice among them by layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from partita.engine.kernels.cuda.convolution import Conv2DKernel
from partita.engine.kernels.cuda.dense import DenseKernel
from partita.engine.kernels.cuda.elementwise import ActivationKernel, AddKernel
from partita.engine.kernels.cuda.local import LocallyConnectedKernel
from partita.engine.kernels.cuda.losses import (
    BinaryCrossEntropyKernel,
    HalfSquaredErrorKernel,
    OneVsRestKernel,
    SoftmaxCrossEntropyKernel,
)
from partita.engine.kernels.cuda.node import NodeKernel
from partita.engine.kernels.cuda.normalisation import LocalContrastNormalisationKernel
from partita.engine.kernels.cuda.pooling import AveragePoolKernel, L2PoolKernel, MaxPoolKernel
from partita.engine.kernels.cuda.tensor_kernel import TensorKernel
from partita.engine.kernels.kernel import Arrays, Kernel, KernelContext
from partita.engine.kernels.thread_pool import ThreadPool

KERNELS: Final[tuple[type[TensorKernel], ...]] = (
    ActivationKernel,
    AddKernel,
    AveragePoolKernel,
    BinaryCrossEntropyKernel,
    Conv2DKernel,
    DenseKernel,
    HalfSquaredErrorKernel,
    L2PoolKernel,
    LocalContrastNormalisationKernel,
    LocallyConnectedKernel,
    MaxPoolKernel,
    OneVsRestKernel,
    SoftmaxCrossEntropyKernel,
)


def maker(context: KernelContext) -> Callable[[KernelContext, Arrays, ThreadPool], Kernel]:
    """Returns the constructor of the kernel for a context.

    Raises:
        ValueError: the layer has no kernel on a GPU.
    """
    for kernel in KERNELS:
        if kernel.layer is type(context.grid.layer):
            return kernel.make
    if context.grid.layer.definition is not None and len(context.sources) == 1:
        return NodeKernel
    raise ValueError(
        f"{context.label} has no kernel on {context.device}, and no definition of one input; add a kernel to "
        "partita.engine.kernels.cuda.table, or give the layer to a machine whose device is 'cpu'"
    )
