"""How buffers are called: what an operand speaks of can be read from its name.

`h1` holds states of layer h1; `h1<h2` the errors of h1's nodes that layer h2 returns; `h2.parameters` and
`h2.gradient` what h2 learns, and its gradient; `loss.summary` what machines tell one another of the scores
that they judge; `norms.squares` sums of squares. Of a layer that is cut by its inputs, `h2.sums` are a
machine's sums over its own inputs, and `h2.deltas` the errors that all its machines have together.
`NAME@3` is NAME as machine 3 sent it, before it is added.

A step that takes its examples in several portions (micro-batches, or whole minibatches) has states, errors,
sums and summaries for each: `h1/2`, `h1<h2/2`, `h1<h2/2@3`, `h2.sums/2@3`. What is learnt has no number,
because all portions share it; but a message of it says of which minibatch it is, if there are several in a
step: `conv.parameters/1`.

Rows of parameters and gradients are those of their layer. Weights that all nodes share are one row, `[0:1]`.
A summary has a row for each piece of the scores, the sums of squares one for each machine that learns.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

PARAMETERS: Final = ".parameters"
GRADIENT: Final = ".gradient"
SUMMARY: Final = ".summary"
SUMS: Final = ".sums"
DELTAS: Final = ".deltas"
NORMS: Final = "norms.squares"

_AFTER_LAYER: Final = re.compile(r"[<./@#]")
_NUMBER: Final = re.compile(r"/(\d+)")


@lru_cache(maxsize=1 << 16)
def layer_of(buffer: str) -> str:
    """The layer whose states, errors, parameters ... it holds."""
    return _AFTER_LAYER.split(buffer, maxsplit=1)[0]


def consumer_of(errors: str) -> str:
    """The layer that returns these errors."""
    return layer_of(errors.partition("<")[2])


def sent_as(buffer: str) -> str:
    """What a message calls it: the name without who sent it."""
    return buffer.partition("@")[0]


def holds_parameters(buffer: str) -> bool:
    """Whether it holds parameters of a layer."""
    return plain(sent_as(buffer)).endswith(PARAMETERS)


def holds_gradient(buffer: str) -> bool:
    """Whether it holds the gradient of a layer's parameters."""
    return plain(sent_as(buffer)).endswith(GRADIENT)


def holds_summary(buffer: str) -> bool:
    """Whether it holds summaries of a loss's scores."""
    return plain(buffer).endswith(SUMMARY)


def holds_sums(buffer: str) -> bool:
    """Whether it holds sums over some of the inputs of a layer that is cut by them."""
    return plain(sent_as(buffer)).endswith(SUMS)


def holds_deltas(buffer: str) -> bool:
    """Whether it holds the errors of all nodes of a layer that is cut by its inputs."""
    return plain(sent_as(buffer)).endswith(DELTAS)


def holds_errors(buffer: str) -> bool:
    """Whether it holds errors, of the nodes to which a layer listens or of its own."""
    return "<" in buffer or holds_deltas(buffer)


def is_learnt(buffer: str) -> bool:
    """Whether it is of what all portions of a step share: parameters, their gradient, or its norms."""
    return holds_parameters(buffer) or holds_gradient(buffer) or plain(buffer) == NORMS


def numbered(buffer: str, number: int) -> str:
    """The buffer of that name and number."""
    name, at, sender = buffer.partition("@")
    return f"{name}/{number}{at}{sender}"


def plain(buffer: str) -> str:
    """The name without its number."""
    return _NUMBER.sub("", buffer) if "/" in buffer else buffer


def number_of(buffer: str) -> int | None:
    """Its number, if it has one."""
    found = _NUMBER.search(buffer) if "/" in buffer else None
    return int(found[1]) if found else None


def place_of(buffer: str, slots: int) -> str:
    """The buffer whose memory it has, if so many of a name take turns: of 2, number 5 that of number 1."""
    number = number_of(buffer)
    if number is None:
        return buffer
    return plain(buffer) if is_learnt(buffer) else numbered(plain(buffer), number % slots)
