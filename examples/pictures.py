"""A network of local filters over pictures, large enough that the automatic plan cuts it over two machines.

    python -m examples.pictures        (half a minute)

prints the plan that was found, trains by it, and ends with the accuracy on pictures that were held out. The
filters are unshared, as those of DistBelief's image model: each place has its own.
"""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_digits

from partita.engine import Adagrad, Downpour, evaluate, train
from partita.layers import Dense, LocallyConnected2D, MaxPool2D, Network, SoftmaxCrossEntropy
from partita.partitioner import Cluster, partition


def network() -> Network:
    """Two layers of unshared filters over 32 x 32 pictures with a pool between, and ten scores."""
    net = Network("pictures")
    image = net.input("image", shape=(32, 32, 1))  # height, width, channels
    edges = LocallyConnected2D(16, kernel_size=7, activation="relu", name="edges")(image)
    pooled = MaxPool2D(2, name="pooled")(edges)
    shapes = LocallyConnected2D(16, kernel_size=5, activation="relu", name="shapes")(pooled)
    net.loss = SoftmaxCrossEntropy(name="loss")(Dense(10, name="scores")(shapes), net.target("digit"))
    return net


def data(seed: int = 0) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Scikit-learn's digits, each pixel enlarged to 4 x 4: what to train on, and a fifth to hold out."""
    digits = load_digits()
    order = np.random.default_rng(seed).permutation(len(digits.target))
    small = (digits.images[order] / 16.0).astype(np.float32)
    images = small.repeat(4, axis=1).repeat(4, axis=2)[..., None]
    labels = digits.target[order]
    fifth = len(labels) // 5
    held_out = {"image": images[:fifth], "digit": labels[:fifth]}
    return {"image": images[fifth:], "digit": labels[fifth:]}, held_out


def main(epochs: int = 8) -> None:
    """Looks for a plan, trains by it, and looks at pictures that the network has not seen."""
    training, held_out = data()
    plan = partition(network(), Cluster.local(machines=2), batch=32)
    print(plan)
    run = train(plan, training, driver=Downpour(optimizer=Adagrad(0.02)), epochs=epochs)
    print(f"held-out accuracy: {evaluate(run, held_out).accuracy:.3f}")


if __name__ == "__main__":
    main()
