"""The derived backward function of a node for one example, as a check calls it: in torch and float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from partita.engine.kernels.kernel import Array
from partita.engine.kernels.nodes import ir
from partita.engine.kernels.nodes.errors import underivable
from partita.engine.kernels.nodes.loops import read_downward, read_upward
from partita.engine.kernels.nodes.vectors import Signature

Downward = Callable[..., tuple[Array, ...]]


def derived_downward(upward: Callable[..., Any], signature: Signature, *, label: str) -> Downward:
    """Derives the function that compiled loops run as `downward`; where loops cannot, autograd does.

    Args:
        upward: of the node.
        signature: what it takes.
        label: kind and name of the layer, for the error.

    Returns:
        A function of `upward`'s arguments, the state and the error, which returns an array of errors, and the
        gradient of each parameter.

    Raises:
        NodeCompileError: no gradients can be derived.
    """
    try:
        forward = read_upward(upward, signature)
    except ir.Unsupported as refused:
        raise underivable(label, upward, refused) from None
    try:
        backward = read_downward(upward, None, signature)
    except ir.Unsupported:
        backward = None

    def downward(*given: Any) -> tuple[Array, ...]:
        return _in_torch(forward, backward, tuple(name for name, _ in signature.parameters), given)

    return downward


def _in_torch(
    forward: ir.Function, backward: ir.Function | None, names: tuple[str, ...], given: tuple[Any, ...]
) -> tuple[Array, ...]:
    """Runs the backward function, or autograd of the forward one, for one node and one example.

    Imports torch.
    """
    import torch

    from partita.engine.kernels.nodes.torch_kernel import TorchForm

    *values, state, error = [
        torch.from_numpy(np.array(one, np.float64)).reshape(*np.shape(one), 1, 1) for one in given
    ]
    form = TorchForm(names, forward, backward)
    if backward is None:
        leaves = [one.requires_grad_() for one in values]
        found = torch.autograd.grad(
            form.upward(leaves[0], leaves[1:], 1), leaves, error, allow_unused=True, materialize_grads=True
        )
    else:
        found = tuple(form.downward(values[0], values[1:], state, error))
    return tuple(one.numpy().reshape(value.shape[:-2]) for one, value in zip(found, values, strict=True))
