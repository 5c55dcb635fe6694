"""Nodes of an exported graph: their operations, arguments, extents, and the lines that made them.

An extent is a whole number, or a multiple of the number of examples.
"""

from __future__ import annotations

import re
from typing import Any, TypeAlias

import torch
from torch import fx

Extent: TypeAlias = tuple[int, bool]
"""A factor, and whether it multiplies the number of examples."""


def extent_of(size: Any) -> Extent:
    """Takes an extent apart. Raises ValueError where it is no multiple of the number of examples."""
    if isinstance(size, int):
        return size, False
    expression = size.node.expr
    symbols = tuple(expression.free_symbols)
    if not symbols:
        return int(expression), False
    factor = expression / symbols[0]
    if len(symbols) > 1 or not factor.is_Integer:
        raise ValueError(f"the extent {size} is no multiple of the number of examples")
    return int(factor), True


def is_tensor(node: object) -> bool:
    """Returns whether a node of the graph is one tensor."""
    return isinstance(node, fx.Node) and isinstance(node.meta.get("val"), torch.Tensor)


def extents(node: fx.Node) -> tuple[Extent, ...]:
    """The extents of a node's tensor."""
    return tuple(map(extent_of, node.meta["val"].shape))


def tensors_of(node: fx.Node) -> tuple[fx.Node, ...]:
    """The nodes that an operation reads, but numbers and parts of the graph."""
    return tuple(
        one for one in node.all_input_nodes if isinstance(one.meta.get("val"), torch.Tensor | tuple | list)
    )


def operation_of(node: fx.Node) -> str:
    """The name of a node's operation, such as "conv2d", "add" or "getitem"; "relu_" is "relu"."""
    if isinstance(node.target, torch._ops.OpOverload):
        return str(node.target).split(".")[1].rstrip("_")
    return getattr(node.target, "__name__", str(node.target))


def is_zeros(node: object) -> bool:
    """Returns whether a tensor is written out as zeros, of any type."""
    while isinstance(node, fx.Node) and operation_of(node) in ("to", "_to_copy", "type_as"):
        node = node.args[0]
    return isinstance(node, fx.Node) and operation_of(node) in ("zeros", "new_zeros", "zeros_like")


def arguments(node: fx.Node) -> dict[str, Any]:
    """The arguments of an operation by their names, with the defaults of those that were not given."""
    schema = node.target._schema  # type: ignore[union-attr]
    found = {one.name: one.default_value for one in schema.arguments if one.has_default_value()}
    found |= {one.name: given for one, given in zip(schema.arguments, node.args, strict=False)}
    return {**found, **node.kwargs}


def module_of(node: fx.Node) -> str:
    """The path in the module of the part that made a node; "" for the module itself."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    return re.sub(r"L\['self'\]\.?", "", stack[-1][0]) if stack else ""


def place_of(node: fx.Node) -> str:
    """The line of the user's source that made a node: `file:line: text`."""
    frames = re.findall(r'File "([^"]+)", line (\d+), in \w+\n\s*(.*)', node.meta.get("stack_trace") or "")
    own = [one for one in frames if "/torch/nn/modules/" not in one[0]] or frames
    if not own:
        return "a line that torch.export did not keep"
    file, line, text = own[-1]
    return f"{file}:{line}: {text.strip()}"


def shape_of(node: fx.Node) -> tuple[Any, ...]:
    """The extents of a node's tensor; that of the examples is a symbol."""
    found = node.meta["val"]
    if not isinstance(found, torch.Tensor):
        raise TypeError(f"{node.name} is no tensor")
    return tuple(found.shape)
