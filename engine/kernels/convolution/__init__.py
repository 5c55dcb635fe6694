"""Convolutions: shared filters on patches of a picture.

`kernel` is the kernel of 16 examples and more; `loops` compute outputs and input gradients, `gradient` the
gradient of the filters. `by_filters` is the kernel of fewer examples, in PyTorch, and `differentiable` the
convolution that a layer's `forward` is given.
"""

from partita.engine.kernels.convolution.kernel import Conv2DKernel

__all__ = ["Conv2DKernel"]
