"""Attention whose rows are heads: a cut divides the weights of the projections."""

from __future__ import annotations

from dataclasses import dataclass, field

from partita.layers.attention import attend
from partita.layers.box import Shape
from partita.layers.connectivity import Connectivity, Full
from partita.layers.contract import Step, Tensor
from partita.layers.initial import Initialiser
from partita.layers.layer import Layer, Parameter
from partita.layers.regularisers import Regulariser


@dataclass(frozen=True)
class AttentionHeads(Layer):
    """Attention with the projections of its heads: rows are heads, and a cut divides the weights.

    Each head reads all of a sequence (positions, features), and of a second one if it attends to that; its
    output has the shape (heads, columns of a head, positions). With fewer heads of keys and values, a row is
    one of these and the heads of queries that share it, whose columns stand side by side.

    Args:
        num_heads, key_dim, causal, masked, num_key_value_heads: as in `Attention`.
        use_bias, initialiser, regulariser, trainable: of the projections, as in `Dense`.
        name: the layer's name in the network.
    """

    several_inputs = True
    slowdown = 1.5

    num_heads: int
    key_dim: int
    causal: bool = field(default=False, kw_only=True)
    masked: bool = field(default=False, kw_only=True)
    num_key_value_heads: int | None = field(default=None, kw_only=True)
    use_bias: bool = field(default=True, kw_only=True)
    initialiser: Initialiser = field(default="glorot", kw_only=True)
    regulariser: Regulariser | None = field(default=None, kw_only=True)
    trainable: bool = field(default=True, kw_only=True)
    name: str | None = field(default=None, kw_only=True)

    @property
    def connectivity(self) -> Connectivity:
        """All positions of each of its inputs."""
        return Full()

    @property
    def definition(self) -> None:
        """None: the keys of a head are computed once for all of its nodes. `Attention` and `Linear`, which
        compute the same with rows of positions, have definitions.
        """
        return None

    def shape(self, sources: tuple[Shape, ...]) -> Shape:
        """The heads, the columns of each, the positions of the queries."""
        return (self._rows, self._together * self.key_dim, sources[0][0])

    @property
    def _rows(self) -> int:
        return self.num_key_value_heads or self.num_heads

    @property
    def _together(self) -> int:
        """Heads of queries that share one of keys and values."""
        return self.num_heads // self._rows

    def parameters(self, shape: Shape, sources: tuple[Shape, ...]) -> tuple[Parameter, ...]:
        """Weights of the queries, and of keys and values, a block for each head; their biases."""
        memory = sources[len(sources) - 1 - self.masked]
        found: list[Parameter] = []
        for name, blocks, source in (("query", self._together, sources[0]), ("key_value", 2, memory)):
            size = (self._rows, blocks * self.key_dim)
            fans = source[1], (self.num_heads if name == "query" else self._rows) * self.key_dim
            found.append(Parameter(f"{name}_weight", (*size, source[1]), self.initialiser, *fans))
            if self.use_bias:
                found.append(Parameter(f"{name}_bias", size))
        return tuple(found)

    def flops_per_node(self, sources: tuple[Shape, ...]) -> float:
        """Products of the projections and of attention."""
        memory = sources[len(sources) - 1 - self.masked]
        pairs = 4.0 * memory[1] * memory[0] / sources[0][0] / self._together
        return 2.0 * sources[0][1] + pairs + 4.0 * memory[0]

    def forward(self, step: Step, inputs: tuple[Tensor, ...], parameters: tuple[Tensor, ...]) -> Tensor:
        """Projections over the features of all positions, and PyTorch's attention."""
        sequences = inputs[: len(inputs) - self.masked]
        weights, biases = parameters[:: 1 + self.use_bias], parameters[1::2] if self.use_bias else ()
        projected = []
        for k, sequence in enumerate((sequences[0], sequences[-1])):
            sums = step.multiply(weights[k].flatten(0, 1), sequence)
            biased = sums + biases[k].flatten()[:, None] if biases else sums
            one = step.contiguous(biased.permute(2, 0, 1))
            projected.append(one.unflatten(-1, (-1, 1 + k, self.key_dim)))
        queries, (keys, values) = projected[0].squeeze(3), projected[1].unbind(3)
        mask = inputs[len(sequences) :]
        found = attend(step, (queries, keys, values), mask, causal=self.causal, whole=True)
        return found.permute(2, 3, 1, 0).unflatten(0, (-1, self._together)).flatten(1, 2)
