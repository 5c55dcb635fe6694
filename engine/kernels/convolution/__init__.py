"""Convolutions: shared filters on patches of a picture.

`kernel` is the kernel; `geometry` says how patches lie, `loops` compute states and errors, `few` those of a
few examples, `gradient` the gradient of the filters.
"""

from partita.engine.kernels.convolution.kernel import Conv2DKernel

__all__ = ["Conv2DKernel"]
