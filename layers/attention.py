"""Attention over the positions of sequences, without weights: `MultiHeadAttention` places it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import numpy as np

from partita.layers.box import Box, Shape, Span
from partita.layers.checks import check_flag, check_whole
from partita.layers.connectivity import Connectivity, Index
from partita.layers.contract import Step, Tensor
from partita.layers.layer import Layer, NodeDefinition

SEQUENCE: Final = "a sequence is (positions, features), for example (12, 64)"
"""The end of a sentence about another input."""


@dataclass(frozen=True)
class Queries(Connectivity):
    """The wiring of a node to its query: the nodes of its own position and head."""

    num_heads: int
    key_dim: int
    causal: bool

    ordered_gradients = False

    def shape(self, source: Shape, nodes: Shape | None) -> Shape:
        """The shape of the queries."""
        return source

    def sources(self, region: Box, source: Shape) -> tuple[Box, ...]:
        """The same positions, of the heads that the region touches."""
        return (Box((region[0], self._of_heads(region))),) if region.size else ()

    def edges(self, rows: Span, shape: Shape, source: Shape) -> tuple[Index, Index]:
        """The units of the head, for each node."""
        table = np.arange(*rows)[:, None, None] * shape[1] + self._units
        return np.arange(table.size // self.key_dim + 1) * self.key_dim, table.reshape(-1)

    def fan_in(self, source: Shape) -> int:
        """The units of a head."""
        return self.key_dim

    def _of_heads(self, region: Box) -> Span:
        left, right = region[1]
        return left // self.key_dim * self.key_dim, -(-right // self.key_dim) * self.key_dim

    @property
    def _units(self) -> Index:
        """For each unit, the units of its head."""
        first = np.arange(self.num_heads * self.key_dim) // self.key_dim * self.key_dim
        return first[:, None] + np.arange(self.key_dim)


@dataclass(frozen=True)
class Attended(Queries):
    """The wiring of a node to the positions that it attends to: of each, the key of its head, then the value
    of its own unit; or, with `masked`, the mask.
    """

    masked: bool = False
    together: int = 1
    """Heads of queries that share a head of keys and values."""

    def sources(self, region: Box, source: Shape) -> tuple[Box, ...]:
        """The positions up to the last one of the region if it is causal, else all."""
        if not region.size:
            return ()
        rows = (0, region[0][1] if self.causal else source[0])
        if self.masked:
            return (Box((rows,)),)
        keys, width = self._of_heads(region), self.num_heads // self.together * self.key_dim
        values = region[1]
        if self.together > 1:
            left, right = (bound // self.key_dim for bound in keys)
            heads = left // self.together, -(-right // self.together)
            values = keys = heads[0] * self.key_dim, heads[1] * self.key_dim
        return Box((rows, keys)), Box((rows, (width + values[0], width + values[1])))

    def edges(self, rows: Span, shape: Shape, source: Shape) -> tuple[Index, Index]:
        """The senders of position after position, for each node."""
        found, counts = [], []
        for row in range(*rows):
            positions = np.arange(row + 1 if self.causal else source[0])
            one = self._of_positions(positions)
            counts += [one[0].size] * len(one)
            found.append(one.reshape(-1))
        return np.cumsum([0, *counts]), np.concatenate(found)

    def _of_positions(self, positions: Index) -> Index:
        """The senders at these positions, for each unit, `[unit, position, sender]`."""
        nodes, width = self.num_heads * self.key_dim, self.num_heads // self.together * self.key_dim
        if self.masked:
            return np.tile(positions[:, None], (nodes, 1, 1))
        heads, units = np.divmod(np.arange(nodes), self.key_dim)
        first = (heads // self.together * self.key_dim)[:, None]
        senders = np.concatenate([first + np.arange(self.key_dim), width + first + units[:, None]], axis=1)
        found: Index = positions[:, None] * 2 * width + senders[:, None]
        return found

    def fan_in(self, source: Shape) -> int:
        """A key and a number of the value, or a number of the mask, of each position."""
        return source[0] * (1 if self.masked else self.key_dim + 1)


@dataclass(frozen=True)
class Attention(Layer):
    """Scaled dot-product attention of several heads, without weights: rows are positions.

    It takes queries (positions, num_heads * key_dim), keys and values side by side (positions, 2 *
    num_key_value_heads * key_dim), and a mask (positions,) if it is `masked`: 1 at positions that are
    attended to, else 0. A query whose positions are all masked gives 0.

    Sources: Vaswani and others, *Attention is all you need*, 2017, section 3.2; fewer heads of keys and
    values: Ainslie and others, *GQA*, 2023.

    Args:
        num_heads: number of heads, which divide the columns.
        key_dim: columns of a head.
        causal: whether a position attends to none after it.
        masked: whether a mask is its third input.
        num_key_value_heads: heads of keys and values, each of which as many neighbouring heads of queries
            share; `num_heads` if not given.
        name: the layer's name in the network.
    """

    _meant: ClassVar[Any] = {
        "dropout": "call Dropout(...) on the result",
        "is_causal": ("causal",),
        "use_causal_mask": ("causal",),
        "enable_gqa": ("num_key_value_heads",),
    }

    several_inputs = True
    divides_examples = True
    slowdown = 3.0

    num_heads: int
    key_dim: int
    causal: bool = field(default=False, kw_only=True)
    masked: bool = field(default=False, kw_only=True)
    num_key_value_heads: int | None = field(default=None, kw_only=True)
    name: str | None = field(default=None, kw_only=True)

    def check(self) -> None:
        """Raises ValueError for an invalid setting."""
        heads = check_whole(self.num_heads, "the number of heads is")
        check_key_value_heads(self.num_key_value_heads, heads)
        self._settle(num_heads=heads, key_dim=check_whole(self.key_dim, "the columns of a head are"))
        check_flag(self.causal, "causal is")
        check_flag(self.masked, "masked is")

    @property
    def connectivity(self) -> Queries:
        """The query of a node."""
        return Queries(*self._heads)

    def wirings(self, sources: tuple[Shape, ...]) -> tuple[Connectivity, ...]:
        """To the query; to keys and values, and to the mask, of the positions that it attends to."""
        together = self.num_heads // self._key_value_heads
        further = (Attended(*self._heads, masked=masked, together=together) for masked in (False, True))
        return (self.connectivity, *further)[: len(sources)]

    @property
    def _key_value_heads(self) -> int:
        return self.num_key_value_heads or self.num_heads

    @property
    def _heads(self) -> tuple[int, int, bool]:
        return self.num_heads, self.key_dim, self.causal

    def shape(self, sources: tuple[Shape, ...]) -> Shape:
        """The shape of the queries.

        Raises:
            ValueError: the inputs are no queries, keys and values of these heads.
        """
        width, keys = self.num_heads * self.key_dim, sources[-1][0]
        pairs = 2 * self._key_value_heads * self.key_dim
        expected = ((sources[0][0], width), (keys, pairs), *[(keys,)] * self.masked)
        if sources != expected:
            mask = " and a mask (positions,)" * self.masked
            raise ValueError(
                f"the inputs have the shapes {' and '.join(map(str, sources))}; give it queries (positions, "
                f"{width}), keys and values (positions, {pairs}){mask}"
            )
        check_causal(self.causal, sources[0][0], keys)
        return sources[0]

    def flops_per_node(self, sources: tuple[Shape, ...]) -> float:
        """Two products for each position, and an exponential."""
        return sources[1][0] * (4.0 + 4.0 / self.key_dim)

    def forward(self, step: Step, inputs: tuple[Tensor, ...], parameters: tuple[Tensor, ...]) -> Tensor:
        """PyTorch's attention of all heads."""
        queries, pairs, *mask = inputs
        queries = step.contiguous(queries.permute(2, 0, 1)).unflatten(-1, (self.num_heads, -1))
        pairs = step.contiguous(pairs.permute(2, 0, 1)).unflatten(-1, (2, self._key_value_heads, -1))
        keys, values = pairs.unbind(2)
        found = attend(step, (queries, keys, values), mask, causal=self.causal)
        return found.flatten(2).permute(1, 2, 0)

    @property
    def definition(self) -> NodeDefinition:
        """A node in scalars: the query, then a key and a number for each position, then the mask."""
        masked, d = self.masked, self.key_dim

        def shares(incoming: Any) -> Any:
            n = (len(incoming) - d) // (d + 1 + masked)
            scores, most = np.zeros(n), -math.inf
            for k in range(n):
                for j in range(d):
                    scores[k] += incoming[j] * incoming[d + k * (d + 1) + j] / math.sqrt(d)
                if not masked or incoming[d + n * (d + 1) + k] > 0.5:
                    most = max(most, scores[k])
            total = 0.0
            for k in range(n):
                seen = not masked or incoming[d + n * (d + 1) + k] > 0.5
                scores[k] = math.exp(scores[k] - most) if seen else 0.0
                total += scores[k]
            return scores / max(total, 1e-300)

        def upward(incoming):  # type: ignore[no-untyped-def]
            found, total = shares(incoming), 0.0 * incoming[0]
            for k in range(len(found)):
                total += found[k] * incoming[d + k * (d + 1) + d]
            return total

        def downward(incoming, state, error):  # type: ignore[no-untyped-def]
            found, errors = shares(incoming), 0.0 * incoming
            for k in range(len(found)):
                key = d + k * (d + 1)
                slope = error * found[k] * (incoming[key + d] - state) / math.sqrt(d)
                errors[key + d] = error * found[k]
                for j in range(d):
                    errors[j] += slope * incoming[key + j]
                    errors[key + j] = slope * incoming[j]
            return (errors,)

        return NodeDefinition(upward, downward)


def attend(
    step: Step,
    tensors: tuple[Tensor, Tensor, Tensor],
    mask: Any,
    *,
    causal: bool,
    whole: bool = False,
) -> Tensor:
    """PyTorch's attention of queries, keys and values `[example, position, head, column]`.

    Neighbouring heads of queries share a head of keys and values where there are fewer of these.

    Args:
        step: its rows are the positions of the queries, unless these are `whole`.
        tensors: keys and values from position 0 on.
        mask: none, or one tensor `[position, example]`.
        causal: whether a position attends to none after it.
        whole: whether queries are of all positions.

    Returns:
        The result, of the shape of the queries.
    """
    torch, (queries, keys, values) = step.torch, (one.transpose(1, 2) for one in tensors)
    first = 0 if whole else step.rows[0]
    given = [(one.detach() > 0.5).T[:, None, None, :] for one in mask]
    seen: Any = given[0] if given else None
    if causal and (given or first or queries.shape[2] != keys.shape[2]):
        size, device = (queries.shape[2], keys.shape[2]), queries.device
        earlier = torch.ones(size, dtype=torch.bool, device=device).tril(first)
        seen = earlier if seen is None else seen & earlier
    scaled = torch.nn.functional.scaled_dot_product_attention
    shared = {"enable_gqa": True} if queries.shape[1] != keys.shape[1] else {}
    found = scaled(queries, keys, values, attn_mask=seen, is_causal=causal and seen is None, **shared)
    if given:  # a query without any position to attend to
        found = torch.where(seen.any(-1, keepdim=True), found, 0.0)
    return found.transpose(1, 2)


def check_key_value_heads(given: int | None, heads: int) -> None:
    """Raises ValueError where heads of keys and values do not divide those of queries."""
    if given is None:
        return
    if heads % check_whole(given, "the number of heads of keys and values is"):
        raise ValueError(
            f"{heads} heads of queries cannot share {given} of keys and values evenly; give a divisor of "
            f"{heads}"
        )


def check_causal(causal: bool, queries: int, keys: int) -> None:
    """Raises ValueError where a causal attention leads from one sequence to another of another length."""
    if causal and queries != keys:
        raise ValueError(
            f"it is causal, but {queries} positions attend to {keys}; give it sequences of one length"
        )
