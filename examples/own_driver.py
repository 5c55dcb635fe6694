"""A training algorithm of one's own: replicas that train alone and take the mean of their parameters.

    python own_driver.py        (some seconds)

A driver is a generator of actions for one part of one replica. This one, local SGD, makes some steps alone
between two means, which saves most of the exchanges of synchronous SGD. Processes, failures, checkpoints and
the display are not its business.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from sklearn.datasets import load_digits

from partita.engine import Momentum, Optimizer, Ring, evaluate, train
from partita.engine.drivers import Driver
from partita.engine.protocol.actions import Action, AllReduce, Apply, Compute, SafePoint
from partita.layers import Dense, Network, SoftmaxCrossEntropy
from partita.partitioner import Cluster, partition

OPTIMIZER = Momentum(0.1)


@dataclass(frozen=True)
class LocalSGD(Driver):
    """Steps of each replica alone, and a mean of the parameters after each few of them."""

    replicas: int = 2
    optimizer: Optimizer = OPTIMIZER
    local_steps: int = 8

    def replica(self, me) -> Iterator[Action]:
        """Plays one part of one replica; all parts of a replica do this in step."""
        for step in me.steps():
            yield Compute(step, alone=True)
            yield Apply(self.optimizer)
            yield SafePoint()
            if (step + 1) % self.local_steps == 0 or me.is_last:
                yield AllReduce("parameters", by=Ring(), mean=True)
                yield SafePoint()


def network() -> Network:
    """A dense layer over 64 pixels, and a score for each digit."""
    net = Network("digits")
    hidden = Dense(64, activation="relu")(net.input("pixels", shape=64))
    net.loss = SoftmaxCrossEntropy()(Dense(10)(hidden), net.target("digit"))
    return net


def data() -> dict[str, np.ndarray]:
    """Scikit-learn's digits."""
    digits = load_digits()
    return {"pixels": digits.data.astype(np.float32) / 16, "digit": digits.target}


def main(epochs: int = 10) -> None:
    """Trains two replicas of one machine each."""
    plan = partition(network(), Cluster.local(machines=1), batch=32)
    run = train(plan, data(), driver=LocalSGD(), epochs=epochs)
    print(evaluate(run, data()))


if __name__ == "__main__":
    main()
