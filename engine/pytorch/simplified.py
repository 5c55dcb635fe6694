"""An exported graph without what computes nothing, and with patterns of operations as the one that they are.

Casts between floating-point types go, because a plan decides the precision; dropout of attention and products
with random masks become operations of their own; what is written out by hand and is a normalisation by the
root of the mean square, or a causal mask, becomes `rms_norm` and `is_causal`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import fx

from partita.engine.pytorch.nodes import arguments, extents, is_tensor, operation_of
from partita.engine.pytorch.random_masks import DROPPED, dropping

ATEN = torch.ops.aten
LONG = 1 << 40
"""A stop of a slice that is the end."""


def simplify(graph: fx.Graph, constants: dict[fx.Node, Any], free: set[fx.Node]) -> None:
    """Changes the graph.

    Args:
        graph: of `torch.export`.
        constants: the values of nodes that depend on no input and no parameter.
        free: nodes that depend on no input.
    """
    for node in list(graph.nodes):
        if node.op != "call_function" or node in free:
            continue
        same = _same(node, constants)
        if same is not None:
            node.replace_all_uses_with(same)
        if same is not None or operation_of(node) == "_assert_tensor_metadata":
            graph.erase_node(node)
    for node in list(graph.nodes):
        if node.op != "call_function" or node in free:
            continue
        if operation_of(node) == "scaled_dot_product_attention":
            _attention(graph, node, constants, free)
        elif operation_of(node) == "mul" and not _drop(graph, node):
            _root_mean_square(graph, node, free)


def _same(node: fx.Node, constants: Mapping[fx.Node, Any]) -> fx.Node | None:
    """The argument that an operation returns as it is; None for others."""
    name = operation_of(node)
    if not is_tensor(node):
        return None
    if name in ("to", "_to_copy", "type_as", "contiguous", "clone", "alias", "lift_fresh_copy"):
        before, after = (one.meta["val"].dtype for one in (node.all_input_nodes[0], node))
        both = before.is_floating_point and after.is_floating_point
        return node.all_input_nodes[0] if both or before == after else None
    if name in ("view", "reshape", "_unsafe_view", "expand"):
        x = node.all_input_nodes[0]
        return x if extents(x) == extents(node) else None
    if name == "slice":
        a = arguments(node)
        extent = a["self"].meta["val"].shape[a["dim"]]
        whole = a["start"] in (None, 0) and a["step"] == 1 and _beyond(a["end"], extent)
        return a["self"] if whole else None
    if name in ("pad", "constant_pad_nd"):
        return None if any(arguments(node)["pad"]) else node.all_input_nodes[0]
    if name == "dropout":
        a = arguments(node)
        return None if a["p"] and a["train"] else node.all_input_nodes[0]
    if name == "cat":
        filled = [one for one in arguments(node)["tensors"] if one not in constants or constants[one].numel()]
        return filled[0] if len(filled) == 1 else None
    return None


def _beyond(end: Any, extent: Any) -> bool:
    """Returns whether a stop lies at or behind the end of a dimension."""
    if end is None or str(end) == str(extent):
        return True
    return isinstance(end, int) and (end > LONG or (isinstance(extent, int) and end >= extent))


def insert(graph: fx.Graph, like: fx.Node, operation: Any, *args: Any) -> fx.Node:
    """Inserts an operation before a node, of the same line of the source."""
    with graph.inserting_before(like):
        node = graph.call_function(operation, args)
    node.meta = {key: kept for key, kept in like.meta.items() if key != "val"}
    values = fx.map_arg(args, lambda one: one.meta["val"])
    with like.meta["val"].fake_mode:
        node.meta["val"] = operation(*values)
    return node


def _attention(graph: fx.Graph, node: fx.Node, constants: dict[fx.Node, Any], free: set[fx.Node]) -> None:
    """Knows a causal mask, and lets dropout be an operation of its own."""
    a = arguments(node)
    mask, causal = a["attn_mask"], a["is_causal"]
    if mask in constants:
        allowed = _allowed(constants[mask])
        if allowed is not None and bool(allowed.all()):
            mask = None
        elif allowed is not None and torch.equal(allowed, torch.ones_like(allowed).tril()):
            mask, causal = None, True
    if not a["dropout_p"]:
        heads = (a["query"], a["key"], a["value"])
        node.kwargs = {"scale": a["scale"], "enable_gqa": a["enable_gqa"]}
        node.args = (*heads, mask, 0.0, causal)
        if causal and not of_heads(node):
            node.args = (*heads, _causal(graph, node, a, constants, free), 0.0, False)
        return
    if a["enable_gqa"]:
        return
    scale = a["query"].meta["val"].shape[-1] ** -0.5 if a["scale"] is None else a["scale"]
    turned = insert(graph, node, ATEN.transpose.int, a["key"], -2, -1)
    scores = insert(graph, node, ATEN.matmul.default, a["query"], turned)
    scores = insert(graph, node, ATEN.mul.Tensor, scores, scale)
    if causal:
        mask = _causal(graph, node, a, constants, free)
    if mask is not None and mask.meta["val"].dtype == torch.bool:
        hidden = insert(graph, node, ATEN.logical_not.default, mask)
        if mask in constants:
            constants[hidden] = ~constants[mask]
            free.add(hidden)
        scores = insert(graph, node, ATEN.masked_fill.Scalar, scores, hidden, float("-inf"))
    elif mask is not None:
        scores = insert(graph, node, ATEN.add.Tensor, scores, mask)
    shares = insert(graph, node, ATEN.softmax.int, scores, -1)
    kept = insert(graph, node, ATEN.dropout.default, shares, a["dropout_p"], True)
    found = insert(graph, node, ATEN.matmul.default, kept, a["value"])
    node.replace_all_uses_with(found)


def _causal(graph: fx.Graph, like: fx.Node, a: Mapping[str, Any], constants: Any, free: Any) -> fx.Node:
    """The mask of a causal attention as a constant of the graph."""
    n, keys = (int(a[name].meta["val"].shape[-2]) for name in ("query", "key"))
    node = insert(graph, like, ATEN.ones.default, [n, keys])
    with like.meta["val"].fake_mode:
        node.meta["val"] = torch.empty((n, keys), dtype=torch.bool)
    constants[node] = torch.ones(n, keys, dtype=torch.bool).tril()
    free.add(node)
    return node


def of_heads(node: fx.Node) -> bool:
    """Returns whether an attention is that of the layer: heads of equal extents, causal or of all
    positions.
    """
    a = arguments(node)
    shapes = [extents(a[name])[1:] for name in ("query", "key", "value")]
    if a["attn_mask"] is not None or a["dropout_p"] or any(len(one) != 3 for one in shapes):
        return False
    (heads, queries, features), (pairs, keys, _), _ = shapes
    shared = pairs == heads or (a["enable_gqa"] and not heads[0] % pairs[0])
    same = shared and shapes[1][2] == features and shapes[1] == shapes[2]
    usual = a["scale"] is None or math.isclose(a["scale"], features[0] ** -0.5)
    return same and usual and (not a["is_causal"] or queries == keys)


def _allowed(mask: torch.Tensor) -> torch.Tensor | None:
    """Returns a mask as a matrix of where positions attend; None for a mask that is more than that."""
    while mask.dim() > 2 and len(mask) == 1:
        mask = mask[0]
    if mask.dim() != 2:
        return None
    if mask.dtype == torch.bool:
        return mask
    hidden = mask <= torch.finfo(mask.dtype).min / 2
    return ~hidden if bool((hidden | (mask == 0)).all()) else None


def _drop(graph: fx.Graph, node: fx.Node) -> bool:
    """Lets a product with a random mask be dropout; returns whether it is one."""
    found = dropping(node)
    if found is None:
        return False
    made = insert(graph, found.last, DROPPED, found.x, found.rate, found.noise)
    if found.factor != 1:
        made = insert(graph, found.last, ATEN.mul.Tensor, made, found.factor)
    found.last.replace_all_uses_with(made)
    return True


def _root_mean_square(graph: fx.Graph, node: fx.Node, free: Collection[fx.Node]) -> None:
    """`x * rsqrt(mean(x ** 2) + epsilon)`, times a weight if there is one, as `rms_norm`."""
    for x, root in _either(node):
        found = _norm(x, root)
        if found is None:
            continue
        epsilon, scaled, weight = found, node, None
        users = list(node.users)
        if len(users) == 1 and operation_of(users[0]) == "mul":
            for other, same in _either(users[0]):
                if (
                    same is node
                    and other in free
                    and other.op == "placeholder"
                    and other.meta["val"].dim() == 1
                ):
                    scaled, weight = users[0], other
        norm = insert(
            graph, scaled, ATEN.rms_norm.default, x, [int(x.meta["val"].shape[-1])], weight, epsilon
        )
        scaled.replace_all_uses_with(norm)
        return


def _either(node: fx.Node) -> list[tuple[fx.Node, fx.Node]]:
    """The two factors of a product in both orders; none where one of them is a number."""
    one, other = node.args[:2]
    return [(one, other), (other, one)] if isinstance(one, fx.Node) and isinstance(other, fx.Node) else []


def _norm(x: fx.Node, root: fx.Node) -> float | None:
    """The epsilon, where `root` is `rsqrt(mean(x ** 2) + epsilon)` over the last dimension; else None."""
    if operation_of(root) != "rsqrt" or not is_tensor(x):
        return None
    total = root.args[0]
    if not isinstance(total, fx.Node) or operation_of(total) != "add" or not isinstance(total.args[1], float):
        return None
    mean = total.args[0]
    if not isinstance(mean, fx.Node) or operation_of(mean) != "mean":
        return None
    a = arguments(mean)
    if not a.get("keepdim"):
        return None
    dims, square = a["dim"], a["self"]
    last = x.meta["val"].dim() - 1
    power = operation_of(square) == "pow" and square.args[1] == 2 and square.args[0] is x
    times = operation_of(square) == "mul" and square.args[0] is x and square.args[1] is x
    return total.args[1] if list(dims) in ([-1], [last]) and (power or times or _squared(square, x)) else None


def _squared(node: fx.Node, x: fx.Node) -> bool:
    return operation_of(node) == "square" and node.args[0] is x
