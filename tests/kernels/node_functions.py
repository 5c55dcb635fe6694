"""Functions of nodes, forward and backward, that several test modules compile."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeVar

from partita.layers import (
    Conv2D,
    Layer,
    per_edge,
    per_node,
)

Kind = TypeVar("Kind", bound=type[Layer])


def by_definition(kind: Kind) -> Kind:
    """A kind of layer that states its definition anew, without a `forward`: it runs by the definition."""
    kind.definition = property(lambda self: super(kind, self).definition)  # type: ignore[assignment,method-assign,misc]
    return kind


def largest(incoming, scale):  # type: ignore[no-untyped-def]
    """Node with an array of its own in the backward function, unlike a weighted sum."""
    most = incoming[0]
    for k in range(1, len(incoming)):
        most = max(most, incoming[k])
    return scale * most


def largest_errors(incoming, scale, state, error):  # type: ignore[no-untyped-def]
    errors = 0.0 * incoming
    which = 0
    for k in range(1, len(incoming)):
        if incoming[k] > incoming[which]:
            which = k
    errors[which] = scale * error
    return errors, error * incoming[which]


LEARNS = (("weight", per_edge()), ("bias", per_node()))


SLOPE = 0.25


def leak(total):  # type: ignore[no-untyped-def]
    return total if total > 0 else SLOPE * total


def leaky_sum(incoming, weight, bias):  # type: ignore[no-untyped-def]
    total = bias
    for k in range(len(incoming)):
        total += weight[k] * incoming[k]
    return leak(total)


def leaky_sum_errors(incoming, weight, bias, state, error):  # type: ignore[no-untyped-def]
    delta = error if state > 0 else leak(-error) * -1 if error > 0 else leak(error)
    return delta * weight, delta * incoming, delta


def root(incoming):  # type: ignore[no-untyped-def]
    if len(incoming) == 0 or incoming[0] > 1e6:
        raise ZeroDivisionError("nothing to divide by")
    return math.sqrt(1 + (incoming * incoming).sum())


def root_errors(incoming, state, error):  # type: ignore[no-untyped-def]
    if error > 1e6:
        return (incoming[:0],)
    return (incoming * (error / state),)


@by_definition
@dataclass(frozen=True)
class OwnConv2D(Conv2D):
    """The same; nodes share their weights."""
