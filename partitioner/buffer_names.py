"""How buffers are called: what an operand speaks of can be read from its name.

`h1` holds states of layer h1; `h1<h2` the errors of h1's nodes that layer h2 returns; `h2.parameters` and
`h2.gradient` what h2 learns, and its gradient; `loss.summary` what machines tell one another of the scores
that they judge; `norms.squares` sums of squares. Of a layer that is cut by its inputs, `h2.sums` are a
machine's sums over its own inputs, and `h2.deltas` the errors that all its machines have together.
`NAME@3` is NAME as machine 3 sent it, before it is added.

Rows of parameters and gradients are those of their layer. Weights that all nodes share are one row, `[0:1]`.
A summary has a row for each piece of the scores, the sums of squares one for each machine that learns.
"""

from __future__ import annotations

from typing import Final

PARAMETERS: Final = ".parameters"
GRADIENT: Final = ".gradient"
SUMMARY: Final = ".summary"
SUMS: Final = ".sums"
DELTAS: Final = ".deltas"
NORMS: Final = "norms.squares"


def layer_of(buffer: str) -> str:
    """The layer whose states, errors, parameters ... it holds."""
    return sent_as(buffer).partition("<")[0].partition(".")[0]


def sent_as(buffer: str) -> str:
    """What a message calls it: the name without who sent it."""
    return buffer.partition("@")[0]


def holds_parameters(buffer: str) -> bool:
    """Whether it holds parameters of a layer."""
    return sent_as(buffer).endswith(PARAMETERS)


def holds_gradient(buffer: str) -> bool:
    """Whether it holds the gradient of a layer's parameters."""
    return sent_as(buffer).endswith(GRADIENT)


def holds_summary(buffer: str) -> bool:
    """Whether it holds summaries of a loss's scores."""
    return buffer.endswith(SUMMARY)


def holds_sums(buffer: str) -> bool:
    """Whether it holds sums over some of the inputs of a layer that is cut by them."""
    return sent_as(buffer).endswith(SUMS)


def holds_deltas(buffer: str) -> bool:
    """Whether it holds the errors of all nodes of a layer that is cut by its inputs."""
    return sent_as(buffer).endswith(DELTAS)
