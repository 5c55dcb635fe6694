"""Multi-head attention with its projections: several layers, placed by one call.

With rows of positions these are two projections, `Attention` and a last projection; with rows of heads
`AttentionHeads`, whose weights are cut with its rows, and `ToPositions`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from partita.layers.attention import SEQUENCE, Attention, check_causal, check_key_value_heads
from partita.layers.attention_heads import AttentionHeads
from partita.layers.box import Shape
from partita.layers.checks import check_flag, check_whole
from partita.layers.linear import Linear
from partita.layers.several_layers import SeveralLayers, unused
from partita.layers.states import SymbolicTensor
from partita.layers.units import ToPositions


@dataclass(frozen=True)
class MultiHeadAttention(SeveralLayers):
    """Attention of several heads over a sequence (positions, features), with its projections.

    Called on one sequence, positions attend to one another; on two, those of the first attend to the second:
    `MultiHeadAttention(8)(x, memory)`. A `mask` (positions,), 1 at positions that are attended to and else 0,
    leaves padding out: `MultiHeadAttention(8)(x, mask=PaddingMask(0)(words))`. The result has the shape of
    the first sequence.

    It places several layers. With `rows="positions"` they are NAME_query, NAME_key_value, NAME_heads and
    NAME, whose rows are positions: machines exchange the keys and values that they need (of a causal
    attention, of earlier positions alone), and share the weights. With `rows="heads"` they are NAME_heads,
    whose rows are heads with weights of their own, and NAME: machines need all of the sequence, and exchange
    no keys, values or weights of heads. Where NAME is cut by its inputs, they exchange one sum forward and
    one gradient backward.

    Source: Vaswani and others, *Attention is all you need*, 2017, section 3.2.2.

    Args:
        num_heads: number of heads.
        key_dim: columns of each head; the features divided by the number of heads if not given.
        causal: whether a position attends to none after it.
        num_key_value_heads: heads of keys and values, fewer than `num_heads`, each of which as many
            neighbouring heads of queries share (grouped-query attention); `num_heads` if not given.
        rows: "positions" or "heads": along which a cut divides the attention.
        use_bias, initialiser, regulariser, trainable: of the projections, as in `Dense`.
        name: of the last layer, and the beginning of the others' names.
    """

    ways = ("positions", "heads")
    _meant: ClassVar[Any] = {
        **SeveralLayers._meant,
        "heads": ("num_heads",),
        "n_heads": ("num_heads",),
        "is_causal": ("causal",),
        "use_causal_mask": ("causal",),
        "head_dim": ("key_dim",),
        "num_kv_heads": ("num_key_value_heads",),
        "num_query_groups": ("num_key_value_heads",),
        "embed_dim": "leave it out: it follows from what the layer is called on",
        "value_dim": "values have as many columns as keys; leave it out",
        "key_padding_mask": "give the call a mask, 1 at positions that count: layer(x, mask=...)",
        "batch_first": "sequences are (positions, features) for each example; leave it out",
    }

    num_heads: int
    key_dim: int | None = None
    causal: bool = field(default=False, kw_only=True)
    num_key_value_heads: int | None = field(default=None, kw_only=True)

    def check(self) -> None:
        """Raises ValueError for an invalid setting of its own."""
        check_key_value_heads(self.num_key_value_heads, check_whole(self.num_heads, "the number of heads is"))
        if self.key_dim is not None:
            check_whole(self.key_dim, "the columns of a head are")
        check_flag(self.causal, "causal is")

    def __call__(
        self,
        query: SymbolicTensor,
        memory: SymbolicTensor | None = None,
        *,
        mask: SymbolicTensor | None = None,
    ) -> SymbolicTensor:
        """Places the layers, and returns the output of the last one, of the shape of `query`.

        Later calls in the same network use the parameters of the first.

        Args:
            query: (positions, features), from which queries are made.
            memory: from which keys and values are made; `query` if not given.
            mask: (positions of the memory,), 1 at positions that are attended to, else 0.

        Raises:
            ValueError: the shapes do not fit, or the inputs are of different networks.
        """
        if not isinstance(query, SymbolicTensor):
            raise ValueError(
                "MultiHeadAttention needs the states of another layer; write MultiHeadAttention(...)(x)"
            )
        memory, network = query if memory is None else memory, query.network
        name = self.name or unused(network, "multi_head_attention")
        try:
            key_dim = self._columns(query.shape, memory.shape, None if mask is None else mask.shape)
        except ValueError as error:
            raise ValueError(f"MultiHeadAttention '{name}': {error}") from error
        width, given = self.num_heads * key_dim, () if mask is None else (mask,)
        masked: Any = {"causal": self.causal, "masked": mask is not None}
        masked["num_key_value_heads"] = self.num_key_value_heads
        masked["name"] = unused(network, f"{name}_heads")
        placed, projects = network.placed(self), ToPositions if self.rows == "heads" else Linear
        if self.rows == "heads":
            sequences = (query,) if memory == query else (query, memory)
            every = AttentionHeads(self.num_heads, key_dim, **self.settings, **masked)
            heads = placed.setdefault("heads", every)
            if heads.masked != every.masked:
                raise ValueError(
                    f"MultiHeadAttention '{name}' was called {'with' if heads.masked else 'without'} a mask "
                    "before, and its calls share their parameters; give all of them a mask, or none"
                )
            found = heads(*sequences, *given)
        else:
            query_of = Linear(width, name=f"{name}_query", **self.settings)
            units = 2 * (self.num_key_value_heads or self.num_heads) * key_dim
            pairs_of = Linear(units, name=f"{name}_key_value", **self.settings)
            queries = placed.setdefault("query", query_of)(query)
            pairs = placed.setdefault("pairs", pairs_of)(memory)
            found = Attention(self.num_heads, key_dim, **masked)(queries, pairs, *given)
        last = placed.setdefault("last", projects(query.shape[1], name=name, **self.settings))
        result: SymbolicTensor = last(found)
        return result

    def _columns(self, query: Shape, memory: Shape, mask: Shape | None) -> int:
        """Columns of a head. Raises ValueError where the shapes do not fit."""
        for shape in (query, memory):
            if len(shape) != 2:
                raise ValueError(f"the input has the shape {shape}; {SEQUENCE}")
        if mask is not None and mask != memory[:1]:
            raise ValueError(f"the mask has the shape {mask}; give a number for each position, {memory[:1]}")
        check_causal(self.causal, query[0], memory[0])
        if self.key_dim is not None:
            return self.key_dim
        if query[1] % self.num_heads:
            raise ValueError(
                f"{query[1]} features do not fall into {self.num_heads} equal heads; choose a number that "
                f"divides them, or give key_dim"
            )
        return query[1] // self.num_heads
