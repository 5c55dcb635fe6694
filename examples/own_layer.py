"""A layer that is declared by one node's arithmetic in plain Python, and trained over two machines.

    python own_layer.py        (some seconds)

A node takes the mean of the larger half of what it receives, by a soft weight: a smooth relative of
max-pooling, which no library has. Its derivative is found by Partita, checked against differences here, and
the layer is cut like those that are built in.
"""

from __future__ import annotations

import math

import numpy as np
from sklearn.datasets import load_digits

from partita.engine import Adagrad, Downpour, check_gradients, evaluate, train
from partita.layers import Dense, LocallyConnected2D, Network, Patch, SoftmaxCrossEntropy, node, per_node
from partita.partitioner import Cluster, partition


@node(Patch(2, stride=2, per_channel=True), sharpness=per_node("ones"))
def soft_max(incoming, sharpness):
    """The mean of a patch, in which larger activations weigh more."""
    weights, total = 0.0, 0.0
    for k in range(len(incoming)):
        weight = math.exp(sharpness * math.tanh(incoming[k]))
        weights += weight
        total += weight * incoming[k]
    return total / weights


def network() -> Network:
    """Unshared filters, the layer above, and a score for each digit."""
    net = Network("own_layer")
    image = net.input("image", shape=(8, 8, 1))
    hidden = LocallyConnected2D(8, kernel_size=3, activation="relu", name="hidden")(image)
    pooled = soft_max(name="pooled")(hidden)
    net.loss = SoftmaxCrossEntropy(name="loss")(Dense(10, name="scores")(pooled), net.target("digit"))
    return net


def data() -> dict[str, np.ndarray]:
    """Scikit-learn's digits."""
    digits = load_digits()
    return {"image": digits.images[..., None].astype(np.float32) / 16, "digit": digits.target}


def main(epochs: int = 10) -> None:
    """Checks the derivative, cuts every layer over two machines, and trains."""
    print(check_gradients(soft_max(), (6, 6, 8)))
    plan = partition(network(), Cluster.local(machines=2), batch=32, strategy="balanced")
    run = train(plan, data(), driver=Downpour(optimizer=Adagrad(0.05)), epochs=epochs)
    print(evaluate(run, data()))


if __name__ == "__main__":
    main()
