"""The arithmetic of layers on arrays: this folder knows arrays and never messages.

`kernel` defines the interface of kernels; `registry` picks the one for a layer, a device and a precision.
`dense`, `linear`, `local` (with `local_loops`), the folder `convolution`, `pooling`, `normalisation` (with
`normalisation_loops`), `layer_norm`, `batch_norm` (with `batch_norm_loops`), `elementwise`,
`torch_activation`, `parts`, `dropout`, `losses` (with `loss_loops`) and `position_losses` (with
`position_loops`) are kernels of built-in layers. `layer_form`, `loss_form` and `partial_form` run the
`forward` of any other layer, in torch (see `partita.layers`): each `form_piece` some rows, or some examples
of them, with `form_backward`; `form_exchange` what cut layers send.
They use the bits of `counted`, the views of `tensors` and the copies of `orders`; `row_sums` sums gradients
of a few rows. `node` runs a node definition, by the folder `nodes`. All use the folders `products` (of
matrices) and `tiles` (loops whose sums stay in registers), and share `activations`, `patches`,
`parameters`, `views`, `calls` and `thread_pool`. `check` compares a user's `downward` with finite
differences.
"""

from partita.engine.kernels.check import GradientCheck, check_gradients
from partita.engine.kernels.kernel import Array, Arrays, Call, Kernel, KernelContext, LossKernel
from partita.engine.kernels.nodes.errors import NodeCompileError
from partita.engine.kernels.registry import build
from partita.engine.kernels.thread_pool import ThreadPool

__all__ = [
    "Array",
    "Arrays",
    "Call",
    "GradientCheck",
    "Kernel",
    "KernelContext",
    "LossKernel",
    "NodeCompileError",
    "ThreadPool",
    "build",
    "check_gradients",
]
