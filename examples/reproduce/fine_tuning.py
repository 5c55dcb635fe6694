"""A deep belief net that is fine-tuned as a classifier of digits, beside the same network from drawn weights.

    python -m examples.reproduce.fine_tuning [SEED ...]        (a minute for each seed)

Sources: Hinton, Osindero and Teh, *A fast learning algorithm for deep belief nets*, 2006; Hinton and
Salakhutdinov, *Reducing the dimensionality of data with neural networks*, 2006.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

from examples import belief_net
from partita.engine import Downpour, Momentum, evaluate, train
from partita.layers import DeepBeliefNet, Dense, Network, SoftmaxCrossEntropy
from partita.partitioner import Plan


def labelled(seed: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
    """Pictures `[example, 64]` in black and white with their digits `[example]`: to learn, and to test."""
    digits = load_digits()
    order = np.random.default_rng(seed).permutation(len(digits.images))
    states = (digits.images.reshape(-1, 64)[order] > 7.5).astype(np.float32)
    return [(states[part], digits.target[order][part]) for part in (slice(1400), slice(1400, None))]


def classifier(parameters: dict[str, Any]) -> Plan:
    """A plan of all levels upward under a dense layer: all weights learn, and begin with these."""
    net = Network("classifier")
    features = DeepBeliefNet((belief_net.UNITS, belief_net.UNITS)).upward(net.input("picture", shape=64))
    net.loss = SoftmaxCrossEntropy()(Dense(10, name="scores")(features), net.target("digit"))
    net.initialise({name: one for name, one in parameters.items() if name in net.graph().parameters})
    return belief_net.cut(net)


def fine_tune(
    seed: int, *, epochs: tuple[int, int] = (12, 15), examples: int | None = None
) -> tuple[float, float]:
    """Accuracies on held-out digits of classifiers, from what the levels have learnt and from drawn weights.

    Args:
        seed: of the division of the digits, of samples and of drawn weights.
        epochs: of each level, and of backpropagation.
        examples: pictures to learn from; all if not given.
    """
    (pictures, digits), (others, known) = labelled(seed)
    pictures, digits = pictures[:examples], digits[:examples]
    levels, fine = epochs
    found = []
    for parameters in (belief_net.belief(pictures, epochs=levels, seed=seed), {}):
        given = {"picture": pictures, "digit": digits}
        driver = Downpour(optimizer=Momentum(0.1))
        run = train(classifier(parameters), given, driver=driver, epochs=fine, seed=seed, show="nothing")
        found.append(evaluate(run, {"picture": others, "digit": known}, show="nothing").accuracy)
    return found[0], found[1]


def main(*seeds: str) -> None:
    """Fine-tunes for each seed, and prints accuracies on held-out digits."""
    found = np.array([fine_tune(int(seed)) for seed in seeds or ("0", "1", "2")])
    for name, accuracies in zip(("fine-tuned belief net", "from drawn weights"), found.T, strict=True):
        print(f"{name:<22} accuracy {accuracies.mean():.4f} (", *(f"{one:.4f}" for one in accuracies), ")")


if __name__ == "__main__":
    main(*sys.argv[1:])
