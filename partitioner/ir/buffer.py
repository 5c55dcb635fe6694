"""Buffers: the arrays that instructions and messages name, as values.

The text form is for reading, and parses back:

- `h1`: activations of layer h1; `h1<h2`: gradient of h1's outputs that layer h2 returns.
- `h2.parameters`, `h2.gradient`: parameters of h2, and their gradient; `h2.weight.parameters`,
  `h2.weight.gradient`: one parameter, where layers use those of others.
- `loss.summary`: numbers that machines exchange about their rows of a layer (of a loss, about the scores that
  each evaluates); `norm.feedback`: the gradient of all these numbers, as each machine's rows return it.
- `norms.squares`: sums of squares of parameters and gradients.
- `h2.sums`, `h2.deltas`, where h2 is cut by its inputs: a machine's sums over its own inputs, and the
  gradient of the weighted sums of all nodes.
- `BUFFER/2` belongs to micro-batch 2 of a step. A message of parameters, their gradient or norms carries the
  number of its minibatch: `conv.parameters/1`.
- `BUFFER@3` is the copy received from machine 3, before it is added.

Rows of parameters and gradients are those of their layer. Weights that all nodes share are one row, `[0:1]`;
where a buffer is of one parameter, each number is a row. A summary and its gradient have a row for each piece
of the layer (of a loss: of the scores), norms have one for each machine that owns parameters.
"""

from __future__ import annotations

import re
from enum import StrEnum
from functools import lru_cache
from typing import Final, NamedTuple


class BufferKind(StrEnum):
    """The contents of a buffer; the value is the word of its text form."""

    ACTIVATIONS = "activations"
    """Outputs of a layer's nodes."""
    GRAD_OUTPUT = "errors"
    """Gradient of a layer's outputs, as one consumer returns it; in place, of its weighted sums."""
    PARAMETERS = "parameters"
    """Parameters that the rows of a layer use."""
    GRADIENT = "gradient"
    """Gradient of these parameters."""
    SUMMARY = "summary"
    """Numbers that machines exchange about their rows of a layer, or the scores of a loss."""
    GRAD_SUMMARY = "feedback"
    """Gradient of the combined summary that a machine's rows return."""
    PARTIAL_SUMS = "sums"
    """Sums over some of the inputs of a layer that is cut by its inputs."""
    GRAD_PREACTIVATION = "deltas"
    """Gradient of all weighted sums of a layer that is cut by its inputs."""
    NORMS = "squares"
    """Sums of squares of parameters and gradients, of all machines."""
    SCRATCH = "scratch"
    """The block of gradients that a FUSED_UPDATE holds."""


class Edge(NamedTuple):
    """One input of one layer: layer `layer` feeds input `number` of `consumer`."""

    layer: str
    consumer: str
    number: int

    @property
    def buffer(self) -> Buffer:
        """The gradient of the outputs of `layer` that `consumer` returns."""
        return _along(self)

    def __str__(self) -> str:
        return f"{self.layer}<{self.consumer}" + (f"#{self.number}" if self.number else "")


class Buffer(NamedTuple):
    """An array that instructions and messages name.

    Args:
        kind: its contents.
        layer: the layer that these belong to; "" for norms and scratch.
        edge: of `GRAD_OUTPUT`, the edge along which the gradient returns.
        micro_batch: number in the step (in a message of parameters, gradients or norms, of the minibatch);
            None where a step has only one.
        peer: the machine from which this copy was received, before it is added to the buffer.
        parameter: of parameters or gradients, the one that these are, by its name in the layer; None: all.
    """

    kind: BufferKind
    layer: str
    edge: Edge | None = None
    micro_batch: int | None = None
    peer: int | None = None
    parameter: str | None = None

    @property
    def sent(self) -> Buffer:
        """The buffer as its sender names it: without `peer`."""
        return self if self.peer is None else self._replace(peer=None)

    @property
    def undivided(self) -> Buffer:
        """The buffer without the number of its micro-batch."""
        return self if self.micro_batch is None else self.numbered(None)

    @property
    def is_of_minibatch(self) -> bool:
        """Returns whether all micro-batches share the buffer: parameters, their gradient, or norms."""
        return self[0] in _OF_MINIBATCH

    @property
    def contents(self) -> str:
        """The contents in words, whatever the layer and micro-batch: `activations`."""
        return _CONTENTS[self.kind]

    @property
    def description(self) -> str:
        """The contents and their layer: `activations of hidden3`."""
        of = f"{self.layer}.{self.parameter}" if self.parameter else self.layer
        return f"{self.contents} of {of}" if of else self.contents

    @property
    def travels_along_edges(self) -> bool:
        """Returns whether the buffer holds activations or their gradients, not exchanges inside a layer."""
        return self.kind is BufferKind.ACTIVATIONS or self.kind is BufferKind.GRAD_OUTPUT

    @property
    def holds_grad(self) -> bool:
        """Returns whether the buffer holds gradients of outputs or of weighted sums."""
        return self.kind in _ERRORS

    def numbered(self, micro_batch: int | None) -> Buffer:
        """The same buffer of another micro-batch."""
        return Buffer(self.kind, self.layer, self.edge, micro_batch, self.peer, self.parameter)

    def received_from(self, peer: int) -> Buffer:
        """The copy that machine `peer` sent."""
        return self._replace(peer=peer)

    def place(self, slots: int) -> Buffer:
        """The buffer in whose memory this one lies: with 2 slots, micro-batch 5 lies where 1 did."""
        if self.micro_batch is None:
            return self
        return self.numbered(None if self.is_of_minibatch else self.micro_batch % slots)

    def __str__(self) -> str:
        match self.kind:
            case BufferKind.ACTIVATIONS:
                name = self.layer
            case BufferKind.GRAD_OUTPUT:
                name = str(self.edge)
            case BufferKind.NORMS:
                name = "norms.squares"
            case kind:
                name = ".".join(filter(None, (self.layer, self.parameter, kind.value)))
        number = "" if self.micro_batch is None else f"/{self.micro_batch}"
        return name + number + ("" if self.peer is None else f"@{self.peer}")


@lru_cache(maxsize=1 << 14)
def _along(edge: Edge) -> Buffer:
    return Buffer(BufferKind.GRAD_OUTPUT, edge.layer, edge)


@lru_cache(maxsize=1 << 14)
def activations(layer: str) -> Buffer:
    """The outputs of a layer's nodes."""
    return Buffer(BufferKind.ACTIVATIONS, layer)


def of_parameter(kind: BufferKind, name: str) -> Buffer:
    """One parameter, or its gradient, by its full name `LAYER.NAME`."""
    layer, _, parameter = name.partition(".")
    return Buffer(kind, layer, parameter=parameter)


NORMS: Final = Buffer(BufferKind.NORMS, "")

_OF_MINIBATCH: Final = frozenset({BufferKind.PARAMETERS, BufferKind.GRADIENT, BufferKind.NORMS})
_ERRORS: Final = frozenset({BufferKind.GRAD_OUTPUT, BufferKind.GRAD_PREACTIVATION})
_CONTENTS: Final = {
    BufferKind.ACTIVATIONS: "activations",
    BufferKind.GRAD_OUTPUT: "gradients",
    BufferKind.GRAD_PREACTIVATION: "gradients",
    BufferKind.PARAMETERS: "weights",
    BufferKind.GRADIENT: "weight gradient",
    BufferKind.SUMMARY: "summary",
    BufferKind.GRAD_SUMMARY: "summary gradient",
    BufferKind.PARTIAL_SUMS: "partial sums",
    BufferKind.NORMS: "sums of squares",
}
_TEXT: Final = re.compile(
    r"(?P<layer>[A-Za-z_][\w-]*)(?:<(?P<consumer>[A-Za-z_][\w-]*)(?:#(?P<number>\d+))?|"
    r"(?:\.(?P<parameter>\w+))?\.(?P<kind>[a-z]+))?"
    r"(?:/(?P<micro_batch>\d+))?(?:@(?P<peer>\d+))?"
)


@lru_cache(maxsize=4096)  # a step that collects parses the same few texts again
def parse_buffer(text: str) -> Buffer:
    """Reads the text form of a buffer.

    Raises:
        ValueError: the text is not one.
    """
    found = _TEXT.fullmatch(text)
    if found is None or found["kind"] not in (None, *BufferKind):
        raise ValueError(f"{text!r} is not a buffer; write for example h1, h1<h2 or h1.gradient")
    layer, edge, kind = found["layer"], None, BufferKind(found["kind"] or BufferKind.ACTIVATIONS)
    if found["consumer"]:
        kind, edge = BufferKind.GRAD_OUTPUT, Edge(layer, found["consumer"], int(found["number"] or 0))
    micro_batch, peer = (
        None if found[part] is None else int(found[part]) for part in ("micro_batch", "peer")
    )
    layer = "" if kind is BufferKind.NORMS else layer
    return Buffer(kind, layer, edge, micro_batch, peer, found["parameter"])
