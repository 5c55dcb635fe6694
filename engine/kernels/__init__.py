"""The arithmetic of layers on arrays: this folder knows arrays and never messages.

`kernel` says what a kernel is; `registry` picks and compiles the one for a layer at a site. `dense`, `local`,
`pooling`, `elementwise` and `losses` are fast kernels of built-in layers; `node` compiles any node
definition, with the folder `nodes` (from a user's functions to what runs them). The folder `cuda` has the
kernels of a GPU, which are imported where there is one. `activations`,
`patches`, `parameters`, `views`, `calls` and `parallel` are what they share. `products` multiplies matrices
by NumPy, in `torch_products` by torch, or in `tiled_products` by our own loops: `calibration` says which,
by what was measured and is kept in `calibration_file` (`calibration_table` shows it). `reference` plays a
definition in plain Python, the truth of the tests, and `check` compares a user's `downward` with differences.
"""

from partita.engine.kernels import calibration
from partita.engine.kernels.check import GradientCheck, check_gradients
from partita.engine.kernels.kernel import Array, Arrays, Call, Kernel, LossKernel, Site
from partita.engine.kernels.nodes.compiler import NodeCompileError
from partita.engine.kernels.parallel import Team
from partita.engine.kernels.registry import build

__all__ = [
    "Array",
    "Arrays",
    "Call",
    "GradientCheck",
    "Kernel",
    "LossKernel",
    "NodeCompileError",
    "Site",
    "Team",
    "build",
    "calibration",
    "check_gradients",
]
