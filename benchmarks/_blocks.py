"""A transformer of several blocks, with rows of positions, or of heads and units: the same numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from benchmarks._recipe import Array
from partita.layers import (
    Add,
    Dense,
    FeedForward,
    LayerNorm,
    MultiHeadAttention,
    Network,
    PositionEmbedding,
    SoftmaxCrossEntropy,
)
from partita.partitioner import Whole
from partita.partitioner.assign.cuts import Cut

BLOCKS: Final = 2
POSITIONS: Final = 64
FEATURES: Final = 256
HEADS: Final = 8
COLUMNS: Final = FEATURES // HEADS


def blocks(rows: str = "positions") -> Network:
    """Causal blocks that normalise first, and 10 classes over all positions.

    Args:
        rows: "positions", or "weights": of heads, and of hidden units.
    """
    of_heads, of_units = ("positions",) * 2 if rows == "positions" else ("heads", "units")
    net = Network("blocks")
    x = PositionEmbedding(name="positions")(net.input("x", shape=(POSITIONS, FEATURES)))
    for n in range(BLOCKS):
        attention = MultiHeadAttention(HEADS, causal=True, rows=of_heads, name=f"attention{n}")
        x = Add(name=f"attended{n}")(x, attention(LayerNorm(name=f"first_norm{n}")(x)))
        normal = LayerNorm(name=f"second_norm{n}")(x)
        x = Add(name=f"block{n}")(x, FeedForward(4 * FEATURES, rows=of_units, name=f"mlp{n}")(normal))
    net.loss = SoftmaxCrossEntropy(name="loss")(Dense(10, name="scores")(x), net.target("label"))
    return net


def of_weights(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """The parameters of the network with rows of positions, as those of the one with rows of heads."""
    found = dict(arrays)
    for n in range(BLOCKS):
        name = f"attention{n}"
        for what in ("weight", "bias"):
            query, pair = found.pop(f"{name}_query.{what}"), found.pop(f"{name}_key_value.{what}")
            found[f"{name}_heads.query_{what}"] = query.reshape(HEADS, COLUMNS, *query.shape[1:])
            both = pair.reshape(2, HEADS, COLUMNS, *pair.shape[1:]).swapaxes(0, 1)
            found[f"{name}_heads.key_value_{what}"] = both.reshape(HEADS, 2 * COLUMNS, *pair.shape[1:])
    return found


def in_stages(machines: int) -> dict[str, Cut]:
    """Puts as many blocks on each machine."""
    found: dict[str, Cut] = {"positions": Whole(0), "scores": Whole(machines - 1)}
    for grid in blocks().graph().computed:
        number = "".join(letter for letter in grid.name if letter.isdigit())
        if number:
            found[grid.name] = Whole(int(number) * machines // BLOCKS)
    return {**found, "loss": Whole(machines - 1)}
