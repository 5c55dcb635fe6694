"""Operations over sequences: recurrent layers, and attention."""

from __future__ import annotations

import math
import operator
from typing import Any

from torch import fx

from partita.engine.pytorch.conversion import Conversion, operation
from partita.engine.pytorch.exported import arguments, operation_of
from partita.engine.pytorch.values import Unsupported, Value
from partita.layers import GRU, LSTM, Attention, Concatenate, Dropout, Reshape


@operation("zeros")
def zeros(at: Conversion, node: fx.Node) -> tuple[Value, ...]:
    """No value of its own: the state before the first position."""
    return ()


@operation("lstm", "gru")
def recurrent(at: Conversion, node: fx.Node) -> tuple[Value, ...]:
    """Layers one above the other, of which each returns its state at every position."""
    a = arguments(node)
    make, states = (LSTM, a["hx"]) if operation_of(node) == "lstm" else (GRU, [a["hx"]])
    if a["bidirectional"] or not a["batch_first"]:
        raise Unsupported("it is bidirectional, or has no batch_first=True")
    if any(not isinstance(one, fx.Node) or operation_of(one) != "zeros" for one in states):
        raise Unsupported("it begins with a state of its own; the layer begins with zeros")
    x, each = at.value(a["input"]).in_order(), 4 if a["has_biases"] else 2
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")[:each]
    for n in range(a["num_layers"]):
        given = dict(zip(names, a["params"][n * each :], strict=False))
        weight = at.numbers(given["weight_hh"])[1]
        if n and a["dropout"]:
            x = at.layer(node, Dropout, x, rate=a["dropout"])
        x = at.weighted(
            node,
            make,
            x,
            given={name: (one, (0, 1) if "weight" in name else (0,)) for name, one in given.items()},
            units=weight.shape[1],
            use_bias=a["has_biases"],
            return_sequences=True,
        )
    return (Value.plain(x),)


@operation("getitem")
def item(at: Conversion, node: fx.Node) -> Value:
    """One of the results of an operation."""
    found, number = at.values(node.args[0]), operator.index(node.args[1])  # type: ignore[arg-type]
    if number >= len(found):
        raise Unsupported("it takes the last state of a recurrent layer; take the output's last position")
    return found[number]


@operation("scaled_dot_product_attention")
def attention(at: Conversion, node: fx.Node) -> Value:
    """Attention of heads, over (heads, positions, features)."""
    a = arguments(node)
    inputs = [at.value(a[name]) for name in ("query", "key", "value")]
    if a["attn_mask"] is not None or a["dropout_p"]:
        raise Unsupported("it has a mask, or dropout; the layer knows is_causal=True")
    shapes = {len(one.axes) for one in inputs}
    heads, _, features = inputs[0].extents if shapes == {3} else (0, 0, 0)
    if not heads or any((one.extents[0], one.extents[2]) != (heads, features) for one in inputs):
        raise Unsupported("its inputs are not (examples, heads, positions, features) with equal heads")
    if a["scale"] is not None and not math.isclose(a["scale"], features**-0.5):
        raise Unsupported(f"its scale is {a['scale']}")

    def rows(one: Value) -> Any:
        return Reshape((one.extents[1], heads * features))(one.arranged((1, 0, 2)))

    queries, keys, values = map(rows, inputs)
    found = at.layer(
        node,
        Attention,
        queries,
        Concatenate()(keys, values),
        num_heads=heads,
        key_dim=features,
        causal=a["is_causal"],
    )
    return Value(Reshape((found.shape[0], heads, features))(found), (1, 0, 2))
