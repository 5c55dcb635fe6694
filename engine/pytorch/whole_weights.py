"""Products with some rows of a weight, as some units of the product with all of it.

`nn.MultiheadAttention` has one weight for queries, keys and values, and splits it where these come from
several sequences. A network has the weight once, as the module does, and calls its layer for each sequence:
the units that are left out are computed and not used, at the cost of their operations.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from partita.engine.pytorch.nodes import arguments, operation_of

_PARTS = ("split", "split_with_sizes", "chunk")


def whole_weights(graph: fx.Graph) -> None:
    """Lets products have whole weights, followed by a slice of their units. The graph is changed."""
    for node in list(graph.nodes):
        if node.op == "call_function" and operation_of(node) == "linear":
            a = arguments(node)
            weight, bias = _rows(a["weight"]), _rows(a["bias"])
            if weight is not None and (a["bias"] is None or (bias is not None and bias[1:] == weight[1:])):
                _replace(graph, node, a["input"], weight, None if bias is None else bias[0])


def _rows(argument: Any) -> tuple[fx.Node, int, int] | None:
    """The parameter of which an argument is some rows, the first of them and the one behind the last."""
    if not isinstance(argument, fx.Node) or operation_of(argument) != "getitem":
        return None
    source, number = argument.args
    assert isinstance(source, fx.Node) and isinstance(number, int), argument
    if operation_of(source) not in _PARTS or arguments(source)["dim"] != 0:
        return None
    whole = source.all_input_nodes[0]
    if whole.op != "placeholder":
        return None
    start = sum(len(one) for one in source.meta["val"][:number])
    return whole, start, start + len(argument.meta["val"])


def _replace(
    graph: fx.Graph, node: fx.Node, x: fx.Node, rows: tuple[fx.Node, int, int], bias: fx.Node | None
) -> None:
    weight, start, stop = rows
    last = node.meta["val"].dim() - 1
    with graph.inserting_before(node):
        product = graph.call_function(torch.ops.aten.linear.default, (x, weight, bias))
        units = graph.call_function(torch.ops.aten.slice.Tensor, (product, last, start, stop))
    value = node.meta["val"]
    for one in (product, units):
        one.meta.update(node.meta)
    with value.fake_mode:
        product.meta["val"] = value.new_empty((*value.shape[:-1], len(weight.meta["val"])))
    node.replace_all_uses_with(units)
