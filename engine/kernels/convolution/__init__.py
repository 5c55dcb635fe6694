"""Convolutions: shared filters on patches of a picture.

`kernel` is the kernel; `loops` compute outputs and input gradients, `gradient` the gradient of the filters.
"""

from partita.engine.kernels.convolution.kernel import Conv2DKernel

__all__ = ["Conv2DKernel"]
