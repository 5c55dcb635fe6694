"""Constants of an exported graph: every tensor that depends on no input and on no parameter, computed once.

Masks, tables of positions and scalars are such tensors. Values are computed as the module computes them, in
its own precision, by running the operations in the order of the graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import fx

from partita.engine.pytorch.nodes import arguments, extent_of, is_tensor, operation_of

EXAMPLES: Final = 2
"""Number of examples for which the constants are computed; a constant is the same for each."""

FILLED: Final = {
    **dict.fromkeys(("new_zeros", "zeros_like"), 0),
    **dict.fromkeys(("new_ones", "ones_like"), 1),
    **dict.fromkeys(("new_full", "full_like"), None),
}
"""Operations that take a tensor for its shape alone, and the number with which they fill it."""


def constants_of(program: torch.export.ExportedProgram, state: Mapping[fx.Node, Any]) -> dict[fx.Node, Any]:
    """Returns the values of all nodes that depend on no input and no parameter.

    Tensors whose axis 0 is that of the examples have one example. A node that cannot be computed is left out.

    Args:
        program: of `torch.export`.
        state: for each node that is a parameter or a buffer, its name and its tensor.
    """
    changed = set(program.graph_signature.buffers_to_mutate.values())
    known: dict[fx.Node, Any] = {}
    for node, (name, tensor) in state.items():
        if not isinstance(tensor, torch.nn.Parameter) and name not in changed:
            known[node] = tensor.detach().clone()
    held: dict[fx.Node, Any] = {}
    with torch.no_grad():
        for node in program.graph.nodes:
            if node.op == "get_attr":
                held[node] = getattr(program.graph_module, node.target)
            elif node.op == "call_function":
                value = _computed(node, {**held, **known})
                if value is not None:
                    known[node] = value
    found = {node: _of_one_example(node, value) for node, value in known.items()}
    return {node: value for node, value in found.items() if value is not None}


def _computed(node: fx.Node, known: Mapping[fx.Node, Any]) -> Any:
    """The value of a node whose arguments are known; None for others."""
    if str(node.target).startswith("aten.sym_size"):
        extent = node.args[0].meta["val"].shape[node.args[1]]  # type: ignore[union-attr]
        factor, counts = extent_of(extent)
        return factor * EXAMPLES if counts else factor
    if operation_of(node) in FILLED and is_tensor(node):
        return _filled(node)
    if not all(one in known for one in node.all_input_nodes):
        return None
    random = getattr(node.target, "tags", ())
    if torch.Tag.nondeterministic_seeded in random:
        return None
    args, named = fx.map_arg((node.args, node.kwargs), known.__getitem__)
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        return _of_part(args)
    assert callable(node.target), node.target
    return node.target(*args, **named)


def _filled(node: fx.Node) -> torch.Tensor | None:
    """A tensor of one number in the shape of another, whose numbers do not count."""
    number = arguments(node).get("fill_value", FILLED[operation_of(node)])
    if not isinstance(number, int | float):
        return None
    found = node.meta["val"]
    sizes = [factor * EXAMPLES if counts else factor for factor, counts in map(extent_of, found.shape)]
    return torch.full(sizes, number, dtype=found.dtype)


def _of_part(args: tuple[Any, ...]) -> Any:
    """The result of a part of the graph that runs under another mode, such as without gradients."""
    for number, one in enumerate(args):
        if isinstance(one, fx.GraphModule):
            return one(*args[number + 1 :])
    return None


def _of_one_example(node: fx.Node, value: Any) -> Any:
    """A tensor of examples as that of one; None where it differs from one example to the next."""
    if not isinstance(value, torch.Tensor) or not is_tensor(node) or not node.meta["val"].dim():
        return value
    factor, counts = extent_of(node.meta["val"].shape[0])
    if not counts:
        return value
    first = value[:1]
    same = factor == 1 and torch.equal(value, first.expand_as(value))
    return first.clone() if same else None
