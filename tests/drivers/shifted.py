"""A small network with a node whose functions differ by a helper and a closure."""

from __future__ import annotations

from typing import Any

from partita.layers import Dense, Network, OneToOne, SoftmaxCrossEntropy, node, per_node

FACTOR = 2.0


def helper(x):  # type: ignore[no-untyped-def]
    return x * FACTOR


def shifted(by: float, *, kind: str = "plain") -> Any:
    def plain(incoming, shift):  # type: ignore[no-untyped-def]
        return incoming[0] + shift

    def helped(incoming, shift):  # type: ignore[no-untyped-def]
        """Like the other."""
        return helper(incoming[0]) + shift * by  # with a comment

    def errors(incoming, shift, state, error):  # type: ignore[no-untyped-def]
        return incoming * 0 + error, error

    made = node(OneToOne(), shift=per_node("zeros"))({"plain": plain, "helped": helped}[kind])
    made.downward(errors)
    return made


def network(*, activation: str = "tanh", odd: Any = None, initialiser: str = "glorot") -> Network:
    net = Network("toy")
    picture = net.input("picture", shape=(8,))
    states = Dense(12, activation=activation, initialiser=initialiser, name="hidden")(picture)
    states = states if odd is None else odd(name="odd")(states)
    net.loss = SoftmaxCrossEntropy()(Dense(3, name="scores")(states), net.target("digit"))
    return net
